package qemu

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// Archive writes the format that Linux unpacks as its first filesystem: cpio in the format newc, of
// Documentation/driver-api/early-userspace/buffer-format.rst. It is too small for a library: the
// maintained library (u-root's) comes with all of u-root.
type Archive struct {
	out   io.Writer
	dirs  map[string]bool
	inode int
	err   error
}

// NewArchive returns an archive that is written to out.
func NewArchive(out io.Writer) *Archive { return &Archive{out: out} }

const (
	typeDir  = 0o040000
	typeFile = 0o100000
)

// File adds a file that all may run, and the directories above it.
func (a *Archive) File(name string, content []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	a.Dir(path.Dir(name))
	a.entry(name, typeFile|0o755, content)
}

// Dir adds a directory, and those above it, unless they are there.
func (a *Archive) Dir(name string) {
	if name = strings.TrimPrefix(path.Clean(name), "/"); name == "." || name == "" || a.dirs[name] {
		return
	}
	a.Dir(path.Dir(name))
	if a.dirs == nil {
		a.dirs = map[string]bool{}
	}
	a.dirs[name] = true
	a.entry(name, typeDir|0o755, nil)
}

// End ends the archive, and returns the first error.
func (a *Archive) End() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *Archive) entry(name string, mode int, content []byte) {
	a.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.write([]byte(header + name + "\x00"))
	a.write(content)
}

// write writes a part, up to a multiple of 4 bytes.
func (a *Archive) write(part []byte) {
	for _, p := range [][]byte{part, make([]byte, -len(part)&3)} {
		if a.err == nil {
			_, a.err = a.out.Write(p)
		}
	}
}
