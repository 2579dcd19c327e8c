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
	"time"

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

// TestListenReplacesOnlySocketsWithoutAnAnswer: a connection alone proves nothing, because the
// kernel also accepts connections for a process that is stalled or ending.
func TestListenReplacesOnlySocketsWithoutAnAnswer(t *testing.T) {
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
		"a gRPC server of another service": {live: true, serve: func(t *testing.T, l net.Listener) {
			server := grpc.NewServer()
			t.Cleanup(server.Stop)
			server.Serve(l)
		}},
		"a server that closes the connection": {live: true,
			serve: func(_ *testing.T, l net.Listener) { acceptAll(l, func(c net.Conn) { c.Close() }) }},
		"a server of another protocol": {live: true, serve: func(_ *testing.T, l net.Listener) {
			acceptAll(l, func(c net.Conn) { io.WriteString(c, "220 hello\r\n") })
		}},
		"a process that ends during the call": {serve: func(_ *testing.T, l net.Listener) {
			acceptAll(l, func(c net.Conn) { l.Close(); c.Close() })
		}},
		"a process that accepts nothing": {serve: func(*testing.T, net.Listener) {}},
		"a process that does not answer": {serve: func(_ *testing.T, l net.Listener) {
			acceptAll(l, func(c net.Conn) { io.Copy(io.Discard, c) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some take answerLimit
			path := filepath.Join(shortDir(t), "csi.sock")
			old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			old.SetUnlinkOnClose(false)
			go tc.serve(t, old)
			limit := answerLimit
			if tc.live {
				limit = time.Hour
			}
			l, err := listen("unix://"+path, false, limit)
			if err == nil {
				defer l.Close()
			}
			if tc.live != (err != nil && strings.Contains(err.Error(), "another process serves this endpoint")) {
				t.Errorf("listen = %v, want an error: %v", err, tc.live)
			}
		})
	}
}

// TestASocketWithAFullQueueIsStale: a stalled process that the kubelet has called many times has
// such a socket.
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

// shortDir returns a directory that exists until the end of the test. The path of a socket has at
// most 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestRestoreMakesTheDirectoryToo: rm -r of the directory of the socket.
func TestRestoreMakesTheDirectoryToo(t *testing.T) {
	parent, err := os.MkdirTemp("", "listen") // short, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	dir := filepath.Join(parent, "plugin")
	l, err := Listen("unix://"+filepath.Join(dir, "s"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if restored, err := Restore(l); !restored || err != nil {
		t.Fatalf("Restore = %t, %v", restored, err)
	}
	conn, err := net.Dial("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
