package helper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	kindRun     = "run"     // driver: begin Task with Body
	kindFiles   = "files"   // driver: descriptors of the frame that follows
	kindMessage = "message" // both
	kindEnd     = "end"     // helper: the task has ended, with Body or Err
)

const (
	maxFrame = 64 << 10 // bytes
	maxFiles = 250      // descriptors of one message; the kernel's limit is SCM_MAX_FD, 253
)

// frame is a message between driver and helper: a datagram of a SOCK_SEQPACKET pair.
type frame struct {
	Kind string          `json:"kind"`
	Task string          `json:"task,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
	Err  *failure        `json:"err,omitempty"`

	files []*os.File
}

// link is an end of the connection between driver and helper. The kernel reports the death of the
// other end as the end of the stream.
type link struct {
	socket *net.UnixConn
	mu     sync.Mutex // held by send
	buffer []byte     // of receive; not for concurrent use
}

// newPair returns a link and the other end of it, as a file for a child process.
func newPair() (*link, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "helper")
	ours, err := newLink(pair[0])
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// newLink takes over a socket's descriptor.
func newLink(fd int) (*link, error) {
	file := os.NewFile(uintptr(fd), "helper")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	socket, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a Unix socket")
	}
	return &link{socket: socket, buffer: make([]byte, maxFrame)}, nil
}

// send sends a frame with body as its Body. The files stay the caller's.
func (l *link) send(f frame, body any, files []*os.File) error {
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		f.Body = raw
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(files) > maxFiles {
		if err := l.write(frame{Kind: kindFiles}, files[:maxFiles]); err != nil {
			return err
		}
		files = files[maxFiles:]
	}
	return l.write(f, files)
}

func (l *link) write(f frame, files []*os.File) error {
	defer runtime.KeepAlive(files)
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if len(data) > maxFrame {
		return fmt.Errorf("a message of %d bytes: at most %d", len(data), maxFrame)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			fds[i] = int(file.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = l.socket.WriteMsgUnix(data, rights, nil)
	return err
}

// receive waits for a frame. Errors: io.EOF when the other end is gone.
func (l *link) receive() (f frame, err error) {
	var files []*os.File
	for {
		part, got, err := l.read()
		if files = append(files, got...); err != nil {
			closeAll(files)
			return frame{}, err
		}
		if part.Kind != kindFiles {
			part.files = files
			return part, nil
		}
	}
}

func (l *link) read() (f frame, files []*os.File, err error) {
	rights := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, nr, flags, _, err := l.socket.ReadMsgUnix(l.buffer, rights)
	if err != nil {
		return f, nil, err
	}
	if nr > 0 {
		if files, err = filesIn(rights[:nr]); err != nil {
			return f, files, err
		}
	}
	if n == 0 {
		return f, files, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return f, files, errors.New("a message was cut off")
	}
	return f, files, json.Unmarshal(l.buffer[:n], &f)
}

func filesIn(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
