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
)

// maxSocketPath is the longest path of a Unix socket on the systems we run on, in bytes.
const maxSocketPath = 107

// CheckEndpoint returns an error for what Listen would never open.
func CheckEndpoint(endpoint string, allowTCP bool) error {
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		if !allowTCP {
			return fmt.Errorf("endpoint %s: anyone who can reach a TCP port could mount and delete volumes: say --allow-tcp if that is what you want", endpoint)
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("endpoint %s: %w", endpoint, err)
		}
		return nil
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return fmt.Errorf("endpoint %q is neither unix:///absolute/path.sock nor tcp://host:port", endpoint)
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("endpoint %s: the path has %d bytes, a socket's has at most %d", endpoint, len(path), maxSocketPath)
	}
	return nil
}

// Listen opens an endpoint: unix:///absolute/path.sock, or tcp://host:port where allowTCP is set. A Unix socket is for
// its owner alone (0600). Listen replaces a socket on which no process answers, and fails if one does.
func Listen(endpoint string, allowTCP bool) (net.Listener, error) {
	if err := CheckEndpoint(endpoint, allowTCP); err != nil {
		return nil, err
	}
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		return net.Listen("tcp", address)
	}
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := checkStale(path); err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	return bindSocket(path)
}

// checkStale returns an error unless there is nothing at path, or a socket on which no process answers.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("the file there is not a socket (%v): remove it, or choose another endpoint", info.Mode())
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	conn, err := connect(ctx, path)
	var late net.Error
	switch {
	case isRefused(err), errors.As(err, &late) && late.Timeout():
		return nil
	case err != nil:
		return fmt.Errorf("find out whether another process serves it: %w", err)
	case !answers(ctx, conn):
		return nil
	}
	if conn, err = connect(ctx, path); isRefused(err) { // the process ended, and that ended its connection
		return nil
	}
	if err == nil {
		conn.Close()
	}
	return errors.New("another process serves it")
}

// answerLimit is how long the process behind a socket may take to answer before another one takes its place.
//
// A process that has ended in part, or that hangs, still has connections accepted by the kernel, and would keep its
// successor from starting. The limit cannot tell such a process from one that is only slow: stopped, or on a machine
// that is overloaded. A driver that goes on then ends itself (Replaced). That costs no data: the lock on the root (flock) keeps the successor from serving a root that the
// first process still has open, and a freeze that the successor ends is an error of the first process's snapshot.
const answerLimit = 3 * time.Second

// connectPause is the time between two tries to connect to a socket whose queue is full.
const connectPause = 50 * time.Millisecond

// connect connects to a socket. While the queue of its connections is full, which Linux reports as EAGAIN, it tries
// again until ctx is done.
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

// answers reports whether the process at the other end of raw answers a call before ctx is done, and closes raw. An
// error is an answer, and so is the end of the connection: a process that serves something else made it.
func answers(ctx context.Context, raw net.Conn) bool {
	defer raw.Close()
	next := make(chan net.Conn, 1)
	next <- raw
	dial := func(context.Context, string) (net.Conn, error) {
		select {
		case conn := <-next:
			return conn, nil
		default:
			return nil, net.ErrClosed // it was an answer; no second connection is needed
		}
	}
	conn, err := grpc.NewClient("passthrough:///socket", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return true // it cannot be told
	}
	defer conn.Close()
	_, err = csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return err == nil || ctx.Err() == nil
}
