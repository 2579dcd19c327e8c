package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/ownsocket"
)

// maxSocketPath is the length of the longest path of a Unix socket on all supported systems, in
// bytes.
const maxSocketPath = 107

// CheckEndpoint returns an error for an endpoint that Listen always rejects.
func CheckEndpoint(endpoint string, allowTCP bool) error {
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		if !allowTCP {
			return fmt.Errorf("endpoint %s: every client that reaches a TCP port can mount and delete volumes: set "+
				"--allow-tcp to permit this", endpoint)
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("endpoint %s: %w", endpoint, err)
		}
		return nil
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return fmt.Errorf("invalid endpoint %q: must be unix:///absolute/path.sock or tcp://host:port", endpoint)
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("endpoint %s: the path has %d bytes, the path of a socket has at most %d", endpoint,
			len(path), maxSocketPath)
	}
	return nil
}

// Listen opens an endpoint: unix:///absolute/path.sock, or tcp://host:port if allowTCP is set. Only
// its owner can use a Unix socket (mode 0600). Listen replaces a socket on which no process
// answers, and returns an error if a process answers.
func Listen(endpoint string, allowTCP bool) (net.Listener, error) {
	return listen(endpoint, allowTCP, answerLimit)
}

// listen is Listen, which waits for an answer for limit.
func listen(endpoint string, allowTCP bool, limit time.Duration) (net.Listener, error) {
	if err := CheckEndpoint(endpoint, allowTCP); err != nil {
		return nil, err
	}
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		return net.Listen("tcp", address)
	}
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := makeSocketDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := checkStale(path, limit); err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	return bindSocket(path)
}

// Restore makes the socket on which l listens again if it was removed, and reports whether it was.
// The connections of the removed socket stay open.
func Restore(l net.Listener) (restored bool, err error) {
	s, ok := l.(*ownsocket.Socket)
	if !ok {
		return false, nil
	}
	restored, err = s.Restore()
	if errors.Is(err, fs.ErrNotExist) { // its directory was removed, too
		if err := makeSocketDir(filepath.Dir(s.Addr().String())); err != nil {
			return false, err
		}
		return s.Restore()
	}
	return restored, err
}

// checkStale returns nil if nothing exists at path, or a socket on which no process answers before
// limit.
func checkStale(path string, limit time.Duration) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("the existing file is not a socket (%v): remove it, or choose another endpoint", info.Mode())
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := connect(ctx, path)
	var late net.Error
	switch {
	case isRefused(err), errors.As(err, &late) && late.Timeout():
		return nil
	case err != nil:
		return fmt.Errorf("check for another process: %w", err)
	case !answers(ctx, conn):
		return nil
	}
	if conn, err = connect(ctx, path); isRefused(err) { // the process has ended, and so has its connection
		return nil
	}
	if err == nil {
		conn.Close()
	}
	return errors.New("another process serves this endpoint")
}

// answerLimit is the time in which the process behind a socket must answer. After this time,
// another process replaces the socket.
//
// The kernel still accepts connections for a process that has ended in part, or that is stalled.
// Such a process would keep its successor from starting. The limit cannot distinguish a stalled
// process from a slow process, which is stopped or on an overloaded machine. A driver that resumes
// later ends itself ([Replaced]). No data is lost: the lock on the root (flock) keeps the successor
// from serving a root that the first process still has open. If the successor ends a freeze, the
// snapshot of the first process fails.
const answerLimit = 3 * time.Second

// connectPause is the time between two attempts to connect to a socket whose queue is full.
const connectPause = 50 * time.Millisecond

// connect connects to a socket. While the connection queue of the socket is full, which Linux
// reports as EAGAIN, connect retries until ctx is done.
func connect(ctx context.Context, path string) (net.Conn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(connectPause):
		}
	}
}

// answers reports whether the process at the other end of raw answers a call before ctx is done,
// and closes raw. An error is an answer. The end of the connection is an answer, too: a process
// with another protocol has closed the connection.
func answers(ctx context.Context, raw net.Conn) bool {
	defer raw.Close()
	next := make(chan net.Conn, 1)
	next <- raw
	dial := func(context.Context, string) (net.Conn, error) {
		select {
		case conn := <-next:
			return conn, nil
		default:
			return nil, net.ErrClosed // the end of the first connection was the answer
		}
	}
	conn, err := grpc.NewClient("passthrough:///socket", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return true // unknown: do not replace the socket
	}
	defer conn.Close()
	_, err = csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return err == nil || ctx.Err() == nil
}
