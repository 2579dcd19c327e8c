//go:build !windows

package livenessprobe

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/unprivileged"
)

// chmod sets a mode for the time of a test.
func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// answers waits until /healthz answers with a code and a text.
func answers(t *testing.T, r *runner, code int, text string) {
	t.Helper()
	await.True(t, text, func() bool {
		got, body := get(r)
		return got == code && strings.Contains(body, text)
	})
}

const denied = "the driver was not asked: dial unix"

func TestADriverWithoutAccessIsNotReportedAsFailed(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	path := socketPath(t)
	d := &driver{}
	defer d.serve(t, path)()
	chmod(t, path, 0)
	r := probing(t, path, unlimited())
	if code, body := get(r); code != 200 || !strings.Contains(body, denied) || !strings.Contains(body, "runAsUser: 0") {
		t.Errorf("/healthz without permission answers %d %q, want 200 with the reason and the remedy", code, body)
	}
	if got := d.probes.Load(); got != 0 {
		t.Errorf("the driver was asked %d times", got)
	}
	chmod(t, path, 0o600)
	answers(t, r, 200, "ok")
}

// Each begins with a driver that is healthy, and to which the connection is then lost.
func TestWhoIsToBlameForALostDriver(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	for _, c := range []struct {
		name string
		next func(t *testing.T, path string)
		code int
		text string
	}{
		{"its successor's socket may not be opened", func(t *testing.T, path string) {
			t.Cleanup((&driver{}).serve(t, path))
			chmod(t, path, 0)
		}, 200, denied},
		{"no socket", func(*testing.T, string) {}, 500, "no such file or directory"},
		{"a socket that nobody serves", func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}, 500, "connection refused"},
		{"its successor is not ready", func(t *testing.T, path string) {
			t.Cleanup((&driver{ready: wrapperspb.Bool(false)}).serve(t, path))
		}, 500, "is not ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := socketPath(t)
			stop := (&driver{}).serve(t, path)
			r := probing(t, path, unlimited())
			answers(t, r, 200, "ok")
			stop()
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("the driver left its socket: %v", err)
			}
			c.next(t, path)
			answers(t, r, c.code, c.text)
		})
	}
}

// TestADriverWithoutASocketFails although it serves its old connections: no new connection reaches
// it (livenessprobe#68).
func TestADriverWithoutASocketFails(t *testing.T) {
	path := socketPath(t)
	defer (&driver{}).serve(t, path)()
	r := probing(t, path, unlimited())
	answers(t, r, 200, "ok")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if code, body := get(r); code != 500 || !strings.Contains(body, "no such file or directory") {
		t.Errorf("/healthz answers %d %q, want 500 with the reason", code, body)
	}
	defer (&driver{}).serve(t, path)()
	if code, body := get(r); code != 200 {
		t.Errorf("/healthz with the socket of a new driver answers %d %q", code, body)
	}
}

// A lack of permission that is over excuses nothing.
func TestADriverThatHangsBehindASocketThatWasDenied(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	path := socketPath(t)
	d := &driver{hang: make(chan struct{})}
	defer d.serve(t, path)()
	defer close(d.hang)
	chmod(t, path, 0)
	c := unlimited()
	r := probing(t, path, c)
	answers(t, r, 200, denied)
	chmod(t, path, 0o600)
	if err := r.socket.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.timeout = time.Second
	answers(t, r, 500, "DeadlineExceeded")
}
