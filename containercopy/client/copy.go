package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/place"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Options are the options of a copy.
type Options struct {
	Limits    archive.Limits
	SHA256    bool
	Overwrite place.Overwrite // of a copy from a container
	Mode      bool            // see archive.UnpackOptions
	Times     bool
	Owner     bool
	Links     bool
	Warn      func(path, reason string) // nil: ignored
	Progress  func(bytes int64)         // bytes of the stream so far, also in OpenSource; nil: ignored
}

// Result is the result of a copy.
type Result struct {
	Sum     archive.Sum
	Entries int64
	Path    string // of the copy
	Merged  bool   // into an existing directory
}

// ErrUnknown is the error of a copy to a container that ended after its stream, and before its
// result.
var ErrUnknown = errors.New("the copy may be at its place")

// isDirPath reports whether a path must be a directory: it ends with a separator.
func isDirPath(path string) bool { return path != "" && os.IsPathSeparator(path[len(path)-1]) }

// contents reports whether a path means the entries of a directory: it ends with "/.".
func contents(path string) bool {
	return path == "." || strings.HasSuffix(path, "/.") || filepath.Separator != '/' &&
		strings.HasSuffix(path, string(filepath.Separator)+".")
}

// TrimContents returns the path of a source in a container, and whether it means the entries of the
// directory: it ends with "/.".
func TrimContents(path string) (string, bool) {
	if trimmed, ok := strings.CutSuffix(path, "/."); ok {
		return trimmed + "/", true
	}
	return path, false
}

// CheckDestination returns an error if no copy can be put at a local path, before a copy begins.
// Errors: place.ErrExists for a file that may not be replaced.
func CheckDestination(path string, o place.Overwrite) error {
	dir, isDir, err := openDestination(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, err := os.Lstat(path); err == nil && !isDir && o == place.Never {
		return fmt.Errorf("%w: %.128q", place.ErrExists, path)
	}
	return nil
}

// Local is a local source that was read once: its sum is in the request of the copy.
type Local struct {
	Sum      archive.Sum
	Contents bool // the entries of a directory, without the directory
	Entries  int64

	path, name string
}

// OpenSource reads a local file or directory to the end, for the size and the checksum of its
// stream.
func OpenSource(ctx context.Context, path string, o Options) (*Local, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(absolute)
	if strings.ContainsAny(name, `/\`) { // the root, or that of a drive
		name = "root"
	}
	l := &Local{Contents: contents(path), path: path, name: name}
	l.Sum, l.Entries, err = l.pack(ctx, o.counter(), o)
	return l, err
}

// counter returns a writer that reports the progress.
func (o Options) counter() io.Writer {
	if o.Progress == nil {
		return io.Discard
	}
	var bytes int64
	return writerFunc(func(p []byte) (int, error) {
		bytes += int64(len(p))
		o.Progress(bytes)
		return len(p), nil
	})
}

// pack writes the stream of the source.
func (l *Local) pack(ctx context.Context, w io.Writer, o Options) (archive.Sum, int64, error) {
	e, err := archive.OpenLocal(l.path)
	if err != nil {
		return archive.Sum{}, 0, err
	}
	defer e.Close()
	if isDirPath(l.path) && !e.Info().Mode.IsDir() {
		return archive.Sum{}, 0, fmt.Errorf("%s: %w", l.path, errNotDir)
	}
	digest := archive.NewDigest(o.SHA256)
	n, err := archive.Pack(ctx, io.MultiWriter(w, digest), l.name, e,
		archive.PackOptions{Limits: o.Limits, Skip: o.Warn})
	return digest.Sum(), n.Entries, err
}

var errNotDir = errors.New("not a directory")

// Send sends the source to a container, and waits until the copy is at its place. Errors:
// archive.ErrChanged if the source has changed since OpenSource, ErrUnknown, wire.Failure.
func (l *Local) Send(ctx context.Context, s *wire.Stream, o Options) (Result, error) {
	quiet := o
	quiet.Warn = nil // OpenSource has warned
	return send(s, o, func() (archive.Sum, int64, error) {
		sum, n, err := l.pack(ctx, s.Buffered(), quiet)
		if err == nil && sum.Check(l.Sum) != nil {
			err = fmt.Errorf("%s: %w", l.path, archive.ErrChanged)
		}
		return sum, n, err
	})
}

// SendStream sends a tar stream, such as standard input, to a container.
func SendStream(ctx context.Context, r io.Reader, s *wire.Stream, o Options) (Result, error) {
	return send(s, o, func() (archive.Sum, int64, error) {
		digest := archive.NewDigest(o.SHA256)
		_, err := io.Copy(io.MultiWriter(s, digest), contextReader{ctx, r})
		return digest.Sum(), 0, err
	})
}

// contextReader ends with its context, at the next Read.
type contextReader struct {
	context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// sent is the end of a source.
type sent struct {
	sum     archive.Sum
	entries int64
	err     error
}

// send sends a stream, and awaits its result. The container can end the copy at any time; a source
// that waits for data, such as a terminal, does not delay that.
func send(s *wire.Stream, o Options, stream func() (archive.Sum, int64, error)) (Result, error) {
	results, sources := make(chan error, 1), make(chan sent, 1)
	var m wire.Message
	go func() {
		var err error
		m, err = s.Await(wire.Result, o.Progress)
		results <- err
	}()
	go func() {
		sum, n, err := stream()
		sources <- sent{sum, n, err}
	}()
	var source sent
	select {
	case source = <-sources:
	case err := <-results:
		if err == nil {
			err = fmt.Errorf("%w: a result before the end of the stream", wire.ErrProtocol)
		}
		return Result{}, err
	}
	err := source.err
	if err == nil {
		err = s.Send(wire.EndOf(source.sum, archive.Counts{Entries: source.entries}))
	} else if !errors.Is(err, wire.ErrNoResult) {
		s.Send(refusal(err)) // the worker removes the unfinished copy
	}
	if failed := <-results; failed != nil {
		var f *wire.Failure
		if err == nil && !errors.As(failed, &f) {
			return Result{}, fmt.Errorf("%w: %w", ErrUnknown, failed)
		}
		if err == nil || errors.As(failed, &f) && f.Code != wire.Aborted {
			return Result{}, failed
		}
	}
	if err != nil {
		return Result{}, err
	}
	if o.SHA256 { // the worker of an older agent may not have computed it
		theirs, err := m.Sum()
		if err == nil && theirs.SHA256 == nil {
			err = fmt.Errorf("%w: the copy is at its place, but its SHA-256 was not verified", wire.ErrProtocol)
		}
		if err == nil {
			err = source.sum.Check(theirs)
		}
		if err != nil {
			return Result{}, err
		}
	}
	if m.Text != "" {
		o.note(wire.Note{Path: m.Path, Reason: m.Text})
	}
	return Result{Sum: source.sum, Entries: max(source.entries, m.Entries), Path: m.Path, Merged: m.Merged}, nil
}

// refusal is the message of a client that cannot complete a copy.
func refusal(err error) wire.Message {
	return wire.Message{Type: wire.Result, Code: wire.Aborted, Text: "the client has ended the copy: " + err.Error()}
}

// Receive puts a copy from a container at a local path, when its size and checksum are right. The
// directory of the path must exist. Errors: archive.ErrDamaged, wire.Failure, and those of place.
func Receive(ctx context.Context, s *wire.Stream, path string, contents bool, o Options) (Result, error) {
	dir, isDir, err := openDestination(path)
	if err != nil {
		return Result{}, err
	}
	defer dir.Close()
	staging, err := place.NewStaging(dir)
	if err != nil {
		return Result{}, err
	}
	var results <-chan error
	r, err := receive(ctx, s, staging, path, dir, isDir, contents, o, func() { results = await(s) })
	left := staging.Remove()
	if err != nil {
		s.Send(refusal(err))
		return Result{}, errors.Join(err, left)
	}
	// The copy is at its place, and its sum is right: no later error changes that.
	if left != nil {
		o.note(wire.Note{Path: r.Path, Reason: left.Error()})
	}
	o.acknowledge(s, results)
	return r, nil
}

// await awaits the end of the container. A connection answers the pings of the agent only while it
// is read, so a client reads during its commit, which can take minutes.
func await(s *wire.Stream) <-chan error {
	results := make(chan error, 1)
	go func() {
		_, err := s.Await(wire.Result, nil)
		results <- err
	}()
	return results
}

// acknowledge reports a copy that is complete to the container, and awaits its end.
func (o Options) acknowledge(s *wire.Stream, results <-chan error) {
	err := s.Send(wire.Message{Type: wire.Ack})
	if err == nil {
		err = <-results
	}
	if err != nil && !errors.Is(err, wire.ErrNoResult) {
		o.note(wire.Note{Reason: "the copy is complete; the container has ended it with an error: " + err.Error()})
	}
}

// commit is place.Destination.Commit, but for tests.
var commit = place.Destination.Commit

// receive unpacks a stream, verifies it, calls whole, and puts the copy at its place.
func receive(ctx context.Context, s *wire.Stream, staging *place.Staging, path string, dir *os.Root, isDir,
	contents bool, o Options, whole func()) (Result, error) {
	body, digest := s.Body(o.note), archive.NewDigest(o.SHA256)
	n, err := archive.Unpack(ctx, io.TeeReader(body, o.counted(digest)), staging.Root, archive.UnpackOptions{
		Limits: o.Limits, Mode: o.Mode, Times: o.Times, Owner: o.Owner, Links: o.Links, Skip: o.Warn})
	if err != nil {
		return Result{}, err
	}
	if err := verify(body, digest, o.SHA256); err != nil {
		return Result{}, err
	}
	whole()
	source, err := staging.Source(contents)
	if err != nil {
		return Result{}, err
	}
	var d place.Destination
	if isDir {
		d, err = place.Into(dir, source)
		path = filepath.Join(path, d.Name)
	} else {
		_, name := split(path)
		d, err = place.At(dir, name, isDirPath(path), source)
	}
	merged := false
	if err == nil {
		merged, err = commit(d, staging, source.Name, o.Overwrite)
	}
	return Result{Sum: digest.Sum(), Entries: n.Entries, Path: path, Merged: merged}, err
}

// note passes a warning of the container on.
func (o Options) note(n wire.Note) {
	if o.Warn != nil {
		o.Warn(n.Path, n.Reason)
	}
}

// counted returns a writer to a digest that reports the progress.
func (o Options) counted(d *archive.Digest) io.Writer {
	if o.Progress == nil {
		return d
	}
	return writerFunc(func(p []byte) (int, error) {
		n, err := d.Write(p)
		o.Progress(d.Size())
		return n, err
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// verify compares a stream with its End message, which must have a SHA-256 if the client wants it.
func verify(body *wire.Body, digest *archive.Digest, sha256 bool) error {
	end, err := body.End()
	if err != nil {
		return err
	}
	declared, err := end.Sum()
	if err != nil {
		return err
	}
	if sha256 && len(declared.SHA256) == 0 {
		return fmt.Errorf("%w: the end of the stream has no SHA-256", wire.ErrProtocol)
	}
	return digest.Sum().Check(declared)
}

// ReceiveStream writes the tar stream of a copy, such as to standard output. After an error the
// bytes that were written are of no use. After the end of ctx a Write of w may still be in
// progress.
func ReceiveStream(ctx context.Context, s *wire.Stream, w io.Writer, o Options) (Result, error) {
	body, digest := s.Body(o.note), archive.NewDigest(o.SHA256)
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, contextReader{ctx, io.TeeReader(body, o.counted(digest))})
		copied <- err
	}()
	var err error
	select {
	case err = <-copied:
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	if err == nil {
		err = verify(body, digest, o.SHA256)
	}
	if err != nil {
		return Result{}, err
	}
	end, err := body.End()
	o.acknowledge(s, await(s))
	return Result{Sum: digest.Sum(), Entries: end.Entries}, err
}

// split returns the directory of a local path, and its last element. It removes no "..": after a
// link, that is the parent of the target of the link.
func split(path string) (dir, name string) {
	for len(path) > 1 && isDirPath(path) {
		path = path[:len(path)-1]
	}
	dir, name = filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	return dir, name
}

// openDestination opens the directory at a local path, or that around it.
func openDestination(path string) (dir *os.Root, isDir bool, err error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		dir, err = os.OpenRoot(path)
		return dir, true, err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, false, err
	}
	above, _ := split(path)
	dir, err = os.OpenRoot(above)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the directory of %s does not exist: %w", path, err)
	}
	return dir, false, err
}
