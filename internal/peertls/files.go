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
	// settleTime is longer than the steps of any filesystem's clock: a file that was changed later than that before it
	// was read may be changed once more and keep its time and size.
	settleTime = 3 * time.Second

	// maxFile is the largest file that is read, in bytes.
	maxFile = 1 << 20

	// maxReads is how often files are read that change meanwhile.
	maxReads = 5
)

// errChanging says that the files were never twice the same.
var errChanging = errors.New("the files change faster than they can be read")

// names returns the files of an identity, in the order in which the rest of this file has them.
func names() [3]string { return [3]string{caFile, certFile, keyFile} }

// stamps tell whether a file is still the one that was read; nil is a file that isn't there.
type stamps [3]fs.FileInfo

// stat looks at the files in dir, through links.
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

// content is what is in the files.
type content [3][]byte

type digest [sha256.Size]byte

// sum tells one content from another; err is that of reading it, if it couldn't be read.
func (c content) sum(err error) digest {
	h := sha256.New()
	fmt.Fprintln(h, err)
	for _, data := range c {
		fmt.Fprintln(h, len(data))
		h.Write(data)
	}
	return digest(h.Sum(nil))
}

// read reads the files in dir. They are three, and a secret's volume may change between two of them: so they are read
// until they are the same before and after. Errors: errChanging, and that of the first file that can't be read.
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

// readFile reads a file of an identity. Anything else is an error: a FIFO would make every
// handshake wait.
func readFile(path string) ([]byte, error) { return regular.ReadFile(path, maxFile) }
