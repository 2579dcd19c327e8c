package peertls

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/internal/regular"
)

// The files of an identity.
const (
	caFile   = "ca.crt"
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

const (
	// settleTime is longer than the resolution of any filesystem's clock. A file that was changed
	// within settleTime before the read may change again without a new time or size.
	settleTime = 3 * time.Second

	// maxFile is the largest file that is read, in bytes.
	maxFile = 1 << 20

	// maxReads bounds the reads of files that change meanwhile.
	maxReads = 5
)

// errChanging reports that no two reads of the files were equal.
var errChanging = errors.New("the files change faster than they can be read")

// names returns the files of an identity, in the order of stamps and content.
func names() [3]string { return [3]string{caFile, certFile, keyFile} }

// stamps identify the files that were read; nil is a missing file.
type stamps [3]fs.FileInfo

// stat returns the stamps of the files in dir. stat follows links.
func stat(dir string) (s stamps) {
	for i, name := range names() {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			s[i] = info
		}
	}
	return s
}

func (s stamps) same(other stamps) bool {
	for i, a := range s {
		b := other[i]
		if a == nil || b == nil {
			if a != b {
				return false
			}
			continue
		}
		if !os.SameFile(a, b) || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) {
			return false
		}
	}
	return true
}

// before reports whether no file was changed at t or later.
func (s stamps) before(t time.Time) bool {
	for _, info := range s {
		if info != nil && !info.ModTime().Before(t) {
			return false
		}
	}
	return true
}

// content is the content of the files.
type content [3][]byte

type digest [sha256.Size]byte

// sum returns a digest of the content, or of the error of the read.
func (c content) sum(err error) digest {
	h := sha256.New()
	fmt.Fprintln(h, err)
	for _, data := range c {
		fmt.Fprintln(h, len(data))
		h.Write(data)
	}
	return digest(h.Sum(nil))
}

// read reads the three files in dir. The volume of a Secret may change between two reads, so the
// files are read until their stamps are equal before and after. Errors: errChanging, or that of the
// first unreadable file.
func read(dir string) (content, stamps, error) {
	seen := stat(dir)
	for range maxReads {
		c, err := readAll(dir)
		after := stat(dir)
		if seen.same(after) {
			return c, seen, err
		}
		seen = after
	}
	return content{}, seen, errChanging
}

func readAll(dir string) (c content, err error) {
	for i, name := range names() {
		if c[i], err = readFile(filepath.Join(dir, name)); err != nil {
			return content{}, err
		}
	}
	return c, nil
}

// readFile reads a regular file. Other types are an error: a FIFO would block every handshake.
func readFile(path string) ([]byte, error) { return regular.ReadFile(path, maxFile) }
