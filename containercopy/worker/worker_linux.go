package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/place"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Main is the main function of a worker. It returns the exit code: 0 after a copy that has
// succeeded or whose error was sent, 1 otherwise.
func Main() int {
	w := &worker{root: RootFD, packets: newPackets(SocketFD)}
	w.stream = wire.NewStream(w.packets)
	message, err := w.packets.Read()
	if err == nil {
		err = json.Unmarshal(message, &w.spec)
	}
	if err == nil {
		w.self, err = confine(&w.spec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		w.fail(err)
		w.drain()
		return 1
	}
	result, err := w.copy()
	if errors.Is(err, wire.ErrNoResult) { // the agent is gone, and so is the copy
		return 1
	}
	if err != nil {
		err = w.fail(err)
	} else {
		err = w.stream.Send(result)
	}
	if err != nil {
		return 1
	}
	w.drain()
	return 0
}

// drain reads until the agent closes the socket. With unread packets, the end of this process would
// be a reset of the connection for the agent, and the Result could be lost.
func (w *worker) drain() {
	w.reader.Wait() // it ends with the connection at the latest
	for {
		if _, err := w.packets.Read(); err != nil {
			return
		}
	}
}

// worker has one copy.
type worker struct {
	spec    Spec
	root    int // descriptors
	self    int
	packets *packets
	stream  *wire.Stream
	reader  sync.WaitGroup // of the goroutine that reads during a copy from the container
}

// fail sends the error of the copy.
func (w *worker) fail(err error) error {
	return w.stream.Send(wire.Message{Type: wire.Result, Code: codeOf(err), Text: err.Error()})
}

// copy makes the copy, and returns its Result.
func (w *worker) copy() (wire.Message, error) {
	if w.spec.From {
		return w.from()
	}
	return w.to()
}

// base returns the name of the first entry of a stream from a path.
func base(p string) string {
	if name := path.Base(path.Clean(p)); name != "/" {
		return name
	}
	return "root"
}

// from sends a file or a directory of the container.
func (w *worker) from() (wire.Message, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := make(chan answer, 2)
	w.reader.Go(func() { // also ends a copy whose client is gone
		defer cancel()
		for _, t := range w.answers() {
			m, err := w.stream.Await(t, nil)
			answers <- answer{m, err}
			if err != nil {
				return
			}
		}
	})
	var first *archive.Sum
	if w.spec.Precompute {
		sum, n, err := w.pack(ctx, io.Discard, nil)
		if err == nil {
			err = w.stream.Send(wire.SumOf(wire.Sum, sum, n))
		}
		if err == nil {
			err = (<-answers).err
		}
		if err != nil {
			return wire.Message{}, reason(answers, err)
		}
		first = &sum
	}
	sum, n, err := w.pack(ctx, w.stream.Buffered(), w.warn)
	if err == nil && first != nil && sum.Check(*first) != nil {
		err = fmt.Errorf("%w: the content was another one when its checksum was computed", archive.ErrChanged)
	}
	if err == nil {
		err = w.stream.Send(wire.EndOf(sum, n))
	}
	if err == nil {
		err = (<-answers).err
	}
	if err != nil {
		return wire.Message{}, reason(answers, err)
	}
	return wire.Message{Type: wire.Result, Size: sum.Size, Entries: n.Entries, Path: w.spec.Path}, nil
}

// answer is a message of the client, or the end of the connection.
type answer struct {
	message wire.Message
	err     error
}

// answers are the types of messages that the client sends.
func (w *worker) answers() []wire.Type {
	if w.spec.Precompute {
		return []wire.Type{wire.Start, wire.Ack}
	}
	return []wire.Type{wire.Ack}
}

// reason adds the end of the connection to an error that follows from it.
func reason(answers <-chan answer, err error) error {
	select {
	case a := <-answers:
		return errors.Join(a.err, err)
	default:
		return err
	}
}

// pack writes the stream of the source.
func (w *worker) pack(ctx context.Context, to io.Writer, skip archive.Skip) (archive.Sum, archive.Counts, error) {
	fd, err := archive.Resolve(w.root, w.spec.Path)
	if err != nil {
		return archive.Sum{}, archive.Counts{}, err
	}
	e, err := archive.FromDescriptor(fd, w.self)
	if err != nil {
		return archive.Sum{}, archive.Counts{}, err
	}
	defer e.Close()
	digest := archive.NewDigest(w.spec.SHA256)
	n, err := archive.Pack(ctx, io.MultiWriter(to, digest), base(w.spec.Path), e,
		archive.PackOptions{Limits: w.spec.Limits, Skip: skip})
	return digest.Sum(), n, err
}

// warn reports an entry that is not copied. An error shows with the next message.
func (w *worker) warn(path, reason string) { w.stream.Warn(wire.Note{Path: path, Reason: reason}) }

// progressInterval is the time between two Progress messages of a copy to a container.
const progressInterval = 500 * time.Millisecond

// to receives a stream, and puts its entries at the path when all of it is right.
func (w *worker) to() (m wire.Message, err error) {
	if err := unix.Close(w.self); err != nil { // a way out of the empty root, which only from needs
		return m, os.NewSyscallError("close", err)
	}
	dir, isDir, err := w.directory()
	if err != nil {
		return m, err
	}
	defer dir.Close()
	staging, err := place.NewStaging(dir)
	if err != nil {
		return m, err
	}
	var done atomic.Int64 // bytes
	defer w.reports(&done, staging)()
	sum, n, err := w.receive(staging, &done)
	if err == nil && w.packets.closed() { // the copy was canceled after its last byte
		err = wire.ErrNoResult
	}
	if err == nil {
		m = wire.EndOf(sum, n)
		m.Type = wire.Result
		m.Path, m.Merged, err = w.commit(dir, isDir, staging)
	}
	if left := staging.Remove(); left != nil && err == nil { // the copy is at its place
		m.Text = left.Error()
	}
	return m, err
}

// directory opens the directory in which the copy appears: that at the path, or the parent of the
// path.
func (w *worker) directory() (dir *os.Root, isDir bool, err error) {
	fd, err := archive.Resolve(w.root, w.spec.Path)
	if err == nil {
		defer unix.Close(fd)
		var s unix.Stat_t
		if err := unix.Fstat(fd, &s); err != nil {
			return nil, false, os.NewSyscallError("fstat", err)
		}
		if s.Mode&unix.S_IFMT == unix.S_IFDIR {
			dir, err = openRoot(fd)
			return dir, true, err
		}
		if w.spec.Overwrite == place.Never { // as for the finished copy, and before the transfer
			return nil, false, fmt.Errorf("%w: %.128q", place.ErrExists, w.spec.Path)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	above, _ := split(w.spec.Path)
	parent, err := archive.Resolve(w.root, above)
	if err != nil {
		return nil, false, err
	}
	defer unix.Close(parent)
	dir, err = openRoot(parent)
	return dir, false, err
}

// split returns the parent and the last element of an absolute path. It removes no "..": after a
// link, that is the parent of the target of the link.
func split(p string) (parent, name string) {
	p = strings.TrimRight(p, "/")
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "/", ""
	}
	return p[:i+1], p[i+1:]
}

// openRoot opens the directory of a descriptor as an os.Root. The process has its own working
// directory, and opens no other relative path.
func openRoot(fd int) (*os.Root, error) {
	if err := unix.Fchdir(fd); err != nil {
		return nil, os.NewSyscallError("fchdir", err)
	}
	return os.OpenRoot(".")
}

// receive unpacks the stream, and compares its sum with that of the client.
func (w *worker) receive(staging *place.Staging, done *atomic.Int64) (archive.Sum, archive.Counts, error) {
	digest := archive.NewDigest(w.spec.SHA256)
	body := w.stream.Body(nil)
	counted := readerFunc(func(p []byte) (int, error) {
		n, err := body.Read(p)
		digest.Write(p[:n])
		done.Add(int64(n))
		return n, err
	})
	n, err := archive.Unpack(context.Background(), counted, staging.Root, archive.UnpackOptions{
		Limits: w.spec.Limits, Umask: fs.FileMode(w.spec.Umask) & 0o700, Mode: w.spec.Mode, Times: w.spec.Times,
		Owner: w.spec.Owner, Links: true, Skip: w.warn})
	if err != nil {
		return archive.Sum{}, n, err
	}
	end, err := body.End()
	if err != nil {
		return archive.Sum{}, n, err
	}
	declared, err := end.Sum()
	known := w.spec.Declared != nil && w.spec.Declared.SHA256 != nil
	if err == nil && w.spec.SHA256 && !known && declared.SHA256 == nil {
		err = fmt.Errorf("%w: the end of the stream has no SHA-256", wire.ErrProtocol)
	}
	if err == nil {
		err = digest.Sum().Check(declared)
	}
	if err == nil && w.spec.Declared != nil {
		err = digest.Sum().Check(*w.spec.Declared)
	}
	return digest.Sum(), n, err
}

// readerFunc is a function that reads.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// reports sends the progress again and again, until stop: the bytes that have arrived, and the entries
// that were moved or removed since.
func (w *worker) reports(done *atomic.Int64, staging *place.Staging) (stop func()) {
	end := make(chan struct{})
	go func() {
		last := int64(-1)
		for {
			select {
			case <-end:
				return
			case <-time.After(progressInterval):
				if now := done.Load() + staging.Done(); now != last {
					last = now
					w.stream.Send(wire.Message{Type: wire.Progress, Size: done.Load()})
				}
			}
		}
	}()
	return func() { close(end) }
}

// commit moves the staged copy to its place, and returns the path of it in the container, and
// whether it was merged into an existing directory.
func (w *worker) commit(dir *os.Root, isDir bool, staging *place.Staging) (at string, merged bool, err error) {
	source, err := staging.Source(w.spec.Contents)
	if err != nil {
		return "", false, err
	}
	var d place.Destination
	at = w.spec.Path
	switch {
	case isDir:
		d, err = place.Into(dir, source)
		at = path.Join(at, d.Name)
	case source.Name == ".":
		err = fmt.Errorf("%w: a stream with several entries needs a directory", place.ErrKind)
	default:
		_, name := split(at)
		d, err = place.At(dir, name, strings.HasSuffix(at, "/"), source)
	}
	if err != nil {
		return "", false, err
	}
	merged, err = d.Commit(staging, source.Name, w.spec.Overwrite)
	return at, merged, err
}

// codes are the codes of errors, the first one that fits.
var codes = []struct {
	err  error
	code wire.Code
}{
	{archive.ErrLimit, wire.OutOfRange}, {archive.ErrRefused, wire.InvalidArgument},
	{archive.ErrFormat, wire.InvalidArgument}, {archive.ErrDamaged, wire.DataLoss}, {archive.ErrChanged, wire.Aborted},
	{archive.ErrKernelFilesystem, wire.FailedPrecondition}, {archive.ErrLease, wire.FailedPrecondition},
	{wire.ErrProtocol, wire.InvalidArgument},
	{place.ErrExists, wire.AlreadyExists}, {place.ErrKind, wire.FailedPrecondition},
	{place.ErrMounted, wire.FailedPrecondition}, {fs.ErrPermission, wire.PermissionDenied},
	{fs.ErrNotExist, wire.NotFound}, {unix.ENOTDIR, wire.NotFound}, {unix.ELOOP, wire.InvalidArgument},
	{unix.EROFS, wire.FailedPrecondition}, {unix.ENOSPC, wire.ResourceExhausted},
	{unix.EDQUOT, wire.ResourceExhausted}, {unix.EFBIG, wire.OutOfRange}, {unix.ENAMETOOLONG, wire.InvalidArgument},
}

// codeOf returns the code of an error of a copy.
func codeOf(err error) wire.Code {
	var f *wire.Failure
	if errors.As(err, &f) {
		return f.Code
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return wire.Internal
}
