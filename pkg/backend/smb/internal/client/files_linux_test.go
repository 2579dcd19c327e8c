package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// TestOpenFilesEndWithTheirSession: the session of a copy is dropped, and another operation opens
// the next session. The copy fails, and leaves the next session alone.
func TestOpenFilesEndWithTheirSession(t *testing.T) {
	b := serve(t)
	b.file("from", content(serverCopy+8<<20))
	for _, op := range []string{"look up", "create", "copy", "flush", "close"} {
		s := b.open(smbtest.Share)
		first := s.session
		var next *Share
		var once sync.Once
		b.pool.Before = func(o, path string) error {
			if o == op && (path == "from" || op == "flush" || op == "create") {
				once.Do(func() {
					b.pool.sever(first)
					next = b.open(smbtest.Share)
				})
			}
			return nil
		}
		err := s.CopyFile(context.Background(), "from", "to-"+op, new(Progress))
		b.pool.Before = nil
		// A file that is only read needs no close.
		if want := op != "close"; errors.Is(err, backend.ErrUnavailable) != want || (err == nil) == want {
			t.Errorf("%s: %v", op, err)
		}
		if next == nil || next.session == first || !b.pool.usable(next.session) {
			t.Errorf("%s: the next session has ended", op)
		}
	}
}

// TestALargeFileIsFlushedInParts: a flush at the end alone could take longer than the limit.
func TestALargeFileIsFlushedInParts(t *testing.T) {
	b := serve(t)
	const part, size = 8 << 20, 20<<20 + 1
	b.pool.flushEvery = part
	b.file("from", content(size))
	s := b.open(smbtest.Share)
	var p Progress
	var flushed []int64
	b.pool.Before = func(op, _ string) error {
		if op == "flush" {
			flushed = append(flushed, p.Bytes.Load())
		}
		return nil
	}
	if err := s.CopyFile(context.Background(), "from", "to", &p); err != nil {
		t.Fatal(err)
	}
	if want := []int64{part, 2 * part, size}; !slices.Equal(flushed, want) {
		t.Errorf("flushed after %d bytes, want %d", flushed, want)
	}
	if flushEvery%chunk != 0 {
		t.Errorf("flushEvery is %d, which is no multiple of %d", flushEvery, chunk)
	}
}

// TestOpenFilesNeedTheLease: no request changes a file after the loss of the right.
func TestOpenFilesNeedTheLease(t *testing.T) {
	b := serve(t)
	b.file("from", content(serverCopy+8<<20))
	s := b.open(smbtest.Share)
	for _, lost := range []string{"look up", "create", "copy", "flush"} {
		valid := true
		var after []string
		b.pool.Before = func(op, _ string) error {
			valid = valid && op != lost
			return nil
		}
		b.pool.After = func(op, _ string) error {
			if !valid {
				after = append(after, op)
			}
			return nil
		}
		ctx := WithLease(context.Background(), func() bool { return valid })
		err := s.CopyFile(ctx, "from", "to-"+lost, new(Progress))
		after = slices.DeleteFunc(after, func(op string) bool { return op == "close" })
		if !errors.Is(err, backend.ErrUnavailable) || len(after) > 0 {
			t.Errorf("%s: %v; operations after the loss: %q", lost, err, after)
		}
		if !b.pool.usable(s.session) {
			t.Errorf("%s: the session has ended", lost)
		}
	}
}

// TestLostAnswers: with After, the server executes an operation whose answer is lost.
func TestLostAnswers(t *testing.T) {
	b := serve(t)
	b.file("from", []byte("x"))
	ctx := context.Background()
	lost := fmt.Errorf("%w: the answer was lost", backend.ErrUnavailable)
	for op, call := range map[string]func(s *Share) error{
		"make directory": func(s *Share) error { return s.Mkdir(ctx, "dir") },
		"create":         func(s *Share) error { return s.Create(ctx, "file", []byte("x")) },
		"close":          func(s *Share) error { return s.CopyFile(ctx, "from", "to", new(Progress)) },
	} {
		s := b.open(smbtest.Share)
		first := s.session
		var asked []string
		b.pool.After = func(o, path string) error {
			if o == op {
				asked = append(asked, path)
				return lost
			}
			return nil
		}
		if err := call(s); !errors.Is(err, lost) {
			t.Errorf("%s: %v", op, err)
		}
		b.pool.After = func(o, path string) error {
			t.Errorf("After(%q, %q) for an operation that failed", o, path)
			return nil
		}
		if b.pool.usable(first) || len(asked) != 1 {
			t.Errorf("%s: After was called for %q, and the session is usable: %v", op, asked, b.pool.usable(first))
		}
		if err := s.Mkdir(ctx, asked[0]); err == nil {
			t.Errorf("%s: the server did not execute the operation", op)
		}
		b.pool.After = nil
	}
}

// TestAPathThatIsInvalidEndsNoSession: the client rejects it, not the server.
func TestAPathThatIsInvalidEndsNoSession(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	first := s.session
	b.file("file", bytes.Repeat([]byte("x"), 10))
	if err := s.Rename(context.Background(), "file", "a/../b"); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("Rename: %v", err)
	}
	if !b.pool.usable(first) {
		t.Error("the session has ended")
	}
}
