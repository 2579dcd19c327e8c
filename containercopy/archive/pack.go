package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// PackOptions are the options of Pack.
type PackOptions struct {
	Limits Limits
	Skip   Skip
}

// packer writes one stream.
type packer struct {
	ctx    context.Context
	tar    *tar.Writer
	budget budget
	skip   Skip
	buffer []byte

	pending int // bytes of names
}

// Pack writes an entry, and all entries below it, as a tar stream. name is the name of the entry in
// the stream, a single element. Permissions, times and numeric owners are in the stream; set-ID and
// sticky bits, extended attributes and holes are not. A hard link is a file of its own. Devices,
// pipes, sockets and filesystems of the kernel are skipped.
//
// The stream is complete or Pack returns an error: also for a file that cannot be read, or that
// becomes shorter (ErrChanged). Headers are small writes: w should have a buffer. An entry that is
// gone before it is opened is skipped.
func Pack(ctx context.Context, w io.Writer, name string, e Entry, o PackOptions) (Counts, error) {
	if o.Limits.Bytes > 0 {
		w = &limitedWriter{w, o.Limits.Bytes, o.Limits.Bytes}
	}
	p := &packer{ctx: ctx, tar: tar.NewWriter(w), budget: budget{limits: o.Limits}, skip: o.Skip,
		buffer: make([]byte, chunk)}
	err := p.budget.entries(1)
	if err == nil {
		err = checkElement(name)
	}
	if err == nil {
		err = p.entry(name, e)
	}
	if err == nil {
		err = p.tar.Close()
	}
	return p.budget.counts, err
}

// limitedWriter returns ErrLimit instead of writing more than left bytes.
type limitedWriter struct {
	io.Writer
	left, limit int64
}

func (w *limitedWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > w.left {
		return 0, fmt.Errorf("%w: the stream has more than %d bytes", ErrLimit, w.limit)
	}
	n, err := w.Writer.Write(b)
	w.left -= int64(n)
	return n, err
}

// entry packs an entry, which has been counted, and the entries below it.
func (p *packer) entry(path string, e Entry) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if err := p.budget.path(path); err != nil {
		return err
	}
	info := e.Info()
	switch info.Mode.Type() {
	case 0:
		return p.file(path, e, info)
	case fs.ModeDir:
		return p.directory(path, e, info)
	case fs.ModeSymlink:
		return p.link(path, e, info)
	}
	if !strings.Contains(path, "/") { // the source itself
		return fmt.Errorf("%w: %.128q is %s", ErrRefused, path, kind(info.Mode))
	}
	p.skip.skip(path, "not copied: %s", kind(info.Mode))
	return nil
}

// kind describes the type of a file that is not copied.
func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeDevice != 0:
		return "a device"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "no file, directory or link"
}

// header returns the header of an entry. Its format is that of GNU: BusyBox reads its long names and
// large numbers, and would extract an entry with records of pax under a wrong name, with a wrong owner
// or without content, as if all were well.
func header(path string, kind byte, info Info) *tar.Header {
	return &tar.Header{Format: tar.FormatGNU, Typeflag: kind, Name: path, Mode: int64(info.Mode.Perm()), Uid: info.UID,
		Gid: info.GID, ModTime: info.Modified.Round(time.Second)}
}

func (p *packer) link(path string, e Entry, info Info) error {
	text, err := e.Link()
	if err != nil {
		return fmt.Errorf("read link %.128q: %w", path, err)
	}
	h := header(path, tar.TypeSymlink, info)
	h.Linkname, h.Mode = text, 0o777
	return p.tar.WriteHeader(h)
}

func (p *packer) file(path string, e Entry, info Info) error {
	f, err := e.Open()
	if err != nil {
		return fmt.Errorf("open %.128q: %w", path, err)
	}
	defer f.Close()
	if err := p.budget.content(info.Size); err != nil {
		return err
	}
	h := header(path, tar.TypeReg, info)
	h.Size = info.Size
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := copyContent(p.ctx, p.tar, f, info.Size, p.buffer)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: the file has %d bytes, before %d", ErrChanged, n, info.Size)
	}
	if err != nil {
		return fmt.Errorf("read %.128q: %w", path, err)
	}
	if n, _ := f.Read(p.buffer[:1]); n > 0 {
		p.skip.skip(path, "the file grows: its first %d bytes are copied", info.Size)
	}
	return nil
}

func (p *packer) directory(path string, e Entry, info Info) error {
	left := p.budget.limits.Entries - int(p.budget.counts.Entries)
	names, err := e.Names(left)
	if err != nil {
		return fmt.Errorf("list %.128q: %w", path, err)
	}
	if err := p.budget.entries(len(names)); err != nil {
		return err
	}
	size := 0
	for _, name := range names {
		size += len(name) + 16 // of a string
	}
	if p.pending += size; p.pending > p.budget.limits.Pending {
		return fmt.Errorf("%w: the names of %.128q need more than %d bytes", ErrLimit, path, p.budget.limits.Pending)
	}
	defer func() { p.pending -= size }()
	if err := p.tar.WriteHeader(header(path+"/", tar.TypeDir, info)); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := p.child(path+"/"+name, name, e); err != nil {
			return err
		}
	}
	return nil
}

// child packs an entry of a directory.
func (p *packer) child(path, name string, dir Entry) error {
	e, err := dir.Child(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.skip.skip(path, "not copied: gone during the copy")
		return nil
	case errors.Is(err, ErrKernelFilesystem):
		p.skip.skip(path, "not copied: %v", err)
		return nil
	case err != nil:
		return fmt.Errorf("open %.128q: %w", path, err)
	}
	defer e.Close()
	return p.entry(path, e)
}
