//go:build !windows

package driver

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// acceptAll calls serve for each connection that l accepts.
func acceptAll(l net.Listener, serve func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go serve(conn)
	}
}

// TestAnAnswerTellsALiveSocketFromADeadOne: a connection tells nothing, as the kernel accepts it for a process that
// hangs or that has not ended yet.
func TestAnAnswerTellsALiveSocketFromADeadOne(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(t *testing.T, l net.Listener)
		live  bool
	}{
		"a driver": {live: true, serve: func(t *testing.T, l net.Listener) {
			server := grpc.NewServer()
			csi.RegisterIdentityServer(server, &identity{cfg: Config{Name: testName}})
			t.Cleanup(server.Stop)
			server.Serve(l)
		}},
		"a gRPC server of something else": {live: true, serve: func(t *testing.T, l net.Listener) {
			server := grpc.NewServer()
			t.Cleanup(server.Stop)
			server.Serve(l)
		}},
		"a server that hangs up": {live: true, serve: func(_ *testing.T, l net.Listener) { acceptAll(l, func(c net.Conn) { c.Close() }) }},
		"a server of another protocol": {live: true, serve: func(_ *testing.T, l net.Listener) {
			acceptAll(l, func(c net.Conn) { io.WriteString(c, "220 hello\r\n") })
		}},
		"a process that ends while it is asked": {serve: func(_ *testing.T, l net.Listener) {
			acceptAll(l, func(c net.Conn) { l.Close(); c.Close() })
		}},
		"a process that accepts nothing": {serve: func(*testing.T, net.Listener) {}},
		"a process that says nothing":    {serve: func(_ *testing.T, l net.Listener) { acceptAll(l, func(c net.Conn) { io.Copy(io.Discard, c) }) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some take as long as a process may take to answer
			path := filepath.Join(shortDir(t), "csi.sock")
			old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			old.SetUnlinkOnClose(false)
			go tc.serve(t, old)
			l, err := Listen("unix://"+path, false)
			if err == nil {
				defer l.Close()
			}
			if tc.live != (err != nil && strings.Contains(err.Error(), "another process serves it")) {
				t.Errorf("Listen = %v, want an error: %v", err, tc.live)
			}
		})
	}
}

// TestASocketWithAFullQueueIsStale: it is that of a process that hangs, and of which the kubelet has asked much.
func TestASocketWithAFullQueueIsStale(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "csi.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	var full bool
	for range 100 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			full = true
			break
		}
		defer conn.Close()
	}
	if !full {
		t.Skip("the kernel accepts connections without end")
	}
	l, err := Listen("unix://"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the new socket: %v", err)
	} else {
		conn.Close()
	}
}

// shortDir returns a directory that is there until the test is over: a socket's path has 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestASocketIsClosedOnce(t *testing.T) {
	path := filepath.Join(shortDir(t), "csi.sock")
	first, err := Listen("unix://"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := Listen("unix://"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	// As if the filesystem had given the next one the number of the first, which ext4 does.
	if first.(*socket).info, err = os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	if first.Close(); !exists(path) {
		t.Error("a second Close removed the next driver's socket")
	}
}
