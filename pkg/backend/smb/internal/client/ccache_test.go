package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/jcmturner/gokrb5/v8/credentials"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// newCache returns a credential cache of alice@EXAMPLE.TEST with a ticket for cifs/server, and the
// positions of its lengths and numbers of entries of four bytes.
func newCache(version byte) (file []byte, lengths []int) {
	number := func(n uint32) { file = binary.BigEndian.AppendUint32(file, n) }
	length := func(n int) { lengths = append(lengths, len(file)); number(uint32(n)) }
	data := func(text string) { length(len(text)); file = append(file, text...) }
	principal := func(names ...string) {
		number(1)
		length(len(names))
		data("EXAMPLE.TEST")
		for _, name := range names {
			data(name)
		}
	}
	typed := func() { file = append(file, 0, 1); data("\x7f\x00\x00\x01") }
	file = []byte{5, version}
	if version == 4 {
		file = append(file, 0, 12, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0) // the offset of the clock of the KDC
	}
	principal("alice")
	for range 2 {
		principal("alice")
		principal("cifs", "server")
		file = append(file, 0, 18)
		if version == 3 {
			file = append(file, 0, 18)
		}
		data("0123456789abcdef0123456789abcdef")
		file = append(file, make([]byte, 4*4+1+4)...)
		length(1)
		typed()
		length(2)
		typed()
		typed()
		data("a ticket")
		data("")
	}
	return file, lengths
}

func TestCredentialCaches(t *testing.T) {
	for _, version := range []byte{3, 4} {
		file, lengths := newCache(version)
		cache := new(credentials.CCache)
		if err := unmarshal(cache, file); err != nil || len(cache.Credentials) != 2 ||
			cache.GetClientPrincipalName().PrincipalNameString() != "alice" {
			t.Errorf("version %d: %+v, %v", version, cache, err)
		}
		whole := map[int]bool{} // lengths of the file with fewer credentials
		for n := range file {
			err := checkCache(file[:n])
			if err == nil {
				whole[n] = true
			} else if !errors.Is(err, backend.ErrUnauthenticated) {
				t.Errorf("version %d, the first %d bytes: %v, want ErrUnauthenticated", version, n, err)
			}
		}
		if len(whole) != 2 {
			t.Errorf("version %d: %d beginnings of the file are whole, want two: %v", version, len(whole), whole)
		}
		for _, at := range lengths {
			for _, n := range []uint32{uint32(len(file)), 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
				broken := append([]byte(nil), file...)
				binary.BigEndian.PutUint32(broken[at:], n)
				if err := checkCache(broken); !errors.Is(err, backend.ErrUnauthenticated) {
					t.Errorf("version %d, the length %d at %d: %v, want ErrUnauthenticated", version, n, at, err)
				}
			}
		}
	}
	// The library ignores the length of a header that its fields do not fill.
	for length := range 49 {
		fields := bytes.Repeat([]byte{0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0}, 5)
		file := append([]byte{5, 4, 0, byte(length)}, fields[:length]...)
		whole, _ := newCache(4)
		file = append(file, whole[16:]...)
		cache := new(credentials.CCache)
		err := unmarshal(cache, file)
		if (err == nil) != (length%12 == 0) || err == nil && len(cache.Credentials) != 2 {
			t.Errorf("a header of %d bytes: %d credentials, %v", length, len(cache.Credentials), err)
		}
	}
	for name, file := range map[string]string{"empty": "", "short": "\x05", "version 2": "\x05\x02", "text": "hello"} {
		if err := checkCache([]byte(file)); !errors.Is(err, backend.ErrUnauthenticated) {
			t.Errorf("%s: %v, want ErrUnauthenticated", name, err)
		}
	}
}

// FuzzCredentialCache: the library sees what checkCache has seen: where it reads a whole file, each of
// its credentials has a part of the file.
func FuzzCredentialCache(f *testing.F) {
	for _, version := range []byte{3, 4} {
		file, _ := newCache(version)
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		cache := new(credentials.CCache)
		if err := unmarshal(cache, file); err != nil {
			if !errors.Is(err, backend.ErrUnauthenticated) {
				t.Errorf("%v, want ErrUnauthenticated", err)
			}
			return
		}
		for _, c := range cache.Credentials {
			if 6*(len(c.Addresses)+len(c.AuthData)) > len(file) {
				t.Errorf("%d addresses and %d entries of authorization data in %d bytes", len(c.Addresses), len(c.AuthData),
					len(file))
			}
		}
	})
}
