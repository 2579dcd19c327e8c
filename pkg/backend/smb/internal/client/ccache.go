package client

import (
	"encoding/binary"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// checkCache returns an error unless each length in a credential cache fits into the rest of the
// file: the library allocates by some of them before it reads on, and a process cannot recover from
// a lack of memory. The format is that of
// https://web.mit.edu/kerberos/krb5-latest/doc/formats/ccache_file_format.html, versions 3 and 4.
// Errors: backend.ErrUnauthenticated.
func checkCache(file []byte) error {
	if len(file) < 2 || file[0] != 5 || file[1] != 3 && file[1] != 4 {
		return fmt.Errorf("%w: the credential cache is no file of MIT Kerberos of version 3 or 4",
			backend.ErrUnauthenticated)
	}
	r := cacheReader{rest: file[2:], version: file[1]}
	if r.version == 4 {
		r.header()
	}
	r.principal()
	for !r.failed && len(r.rest) > 0 {
		r.credential()
	}
	if r.failed {
		return fmt.Errorf("%w: the credential cache is damaged: a length in it is wrong", backend.ErrUnauthenticated)
	}
	return nil
}

// cacheReader reads a credential cache.
type cacheReader struct {
	rest    []byte
	version byte
	failed  bool // a length is wrong
}

// skip returns the next n bytes and removes them from rest.
func (r *cacheReader) skip(n int64) []byte {
	if r.failed || n > int64(len(r.rest)) {
		r.failed = true
		return nil
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

// number reads an integer of 2 or 4 bytes.
func (r *cacheReader) number(size int64) uint32 {
	switch b := r.skip(size); len(b) {
	case 2:
		return uint32(binary.BigEndian.Uint16(b))
	case 4:
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// header skips a header. Its fields have the offset of the clock of the KDC, the only field of the
// format. The library ignores the length of a header that its fields do not fill, and would read
// the rest at another position.
func (r *cacheReader) header() {
	const field = 2 + 2 + 8
	length := r.number(2)
	r.failed = r.failed || length%field != 0
	for ; length > 0 && !r.failed; length -= field {
		tag, size := r.number(2), r.number(2)
		r.failed = r.failed || tag != 1 || size != 8
		r.skip(8)
	}
}

// data skips bytes with their length before them.
func (r *cacheReader) data() { r.skip(int64(r.number(4))) }

// list skips a list with its number of entries before it. An entry has at least 4 bytes, so a number
// of entries that the file cannot have fails soon.
func (r *cacheReader) list(entry func()) {
	for n := r.number(4); n > 0 && !r.failed; n-- {
		entry()
	}
}

func (r *cacheReader) principal() {
	r.number(4) // the type of the name
	components := r.number(4)
	r.data() // the realm
	for ; components > 0 && !r.failed; components-- {
		r.data()
	}
}

func (r *cacheReader) credential() {
	r.principal() // the client
	r.principal() // the server
	r.number(2)   // the type of the key
	if r.version == 3 {
		r.number(2) // once more
	}
	r.data()            // the key
	r.skip(4*4 + 1 + 4) // four times, a flag of a user-to-user ticket, the flags of the ticket
	typed := func() { r.number(2); r.data() }
	r.list(typed) // addresses
	r.list(typed) // authorization data
	r.data()      // the ticket
	r.data()      // the second ticket
}
