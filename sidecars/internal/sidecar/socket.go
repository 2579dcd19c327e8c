package sidecar

import (
	"context"
	"net"
	"sync"
	"time"
)

// Socket is the driver's socket. It keeps the error of the last dial, of which gRPC passes on the
// text alone.
type Socket struct {
	path   string
	denied Problem

	mu   sync.Mutex
	last error

	check   sync.Mutex // held by Check
	checked time.Time
	failure error // the result of Check
}

// NewSocket returns the socket at a path. It need not exist.
func NewSocket(path string) *Socket { return &Socket{path: path} }

// Dial connects to the socket.
func (s *Socket) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.path)
	s.mu.Lock()
	s.last = err
	s.mu.Unlock()
	var denied error
	if isDenied(err) {
		denied = ExplainDenied(err, s.path, mayWrite)
	}
	s.denied.Report(context.Background(), "Cannot open the driver's socket", denied)
	return conn, err
}

// checkEvery is the time for which all callers of Check get one result: any client of a port can
// ask, and the driver serves each connection.
const checkEvery = time.Second

// Check returns an error if the socket accepts no connection.
func (s *Socket) Check(ctx context.Context) error {
	if s == nil { // no controller needs a driver
		return nil
	}
	s.check.Lock()
	defer s.check.Unlock()
	if time.Since(s.checked) < checkEvery {
		return s.failure
	}
	conn, err := s.Dial(ctx)
	if err == nil {
		err = conn.Close()
	}
	s.checked, s.failure = time.Now(), err
	return err
}

// Denied returns an error with the remedy if the last dial failed with EACCES or EPERM. The driver
// may be healthy then.
func (s *Socket) Denied() error {
	if s == nil { // no controller needs a driver
		return nil
	}
	return s.denied.Err()
}

// err returns the error of the last dial.
func (s *Socket) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Permissions that a process needs, as bits of the mode for others.
const (
	maySearch  = 0o1
	mayWrite   = 0o2
	MayAddFile = mayWrite | maySearch // in a directory
)

// ExplainDenied adds the reason and the remedy to EACCES and EPERM at a path. ExplainDenied returns
// other errors unchanged.
func ExplainDenied(err error, path string, need uint32) error {
	if !isDenied(err) {
		return err
	}
	return explain(err, path, need)
}
