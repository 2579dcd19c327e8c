package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// bench is a private server with a pool.
type bench struct {
	*testing.T
	*smbtest.Server
	pool *Pool
}

func serve(t *testing.T) bench {
	t.Helper()
	b := bench{t, smbtest.Serve(t), NewPool()}
	t.Cleanup(b.pool.Close)
	return b
}

func (b bench) source(share string) mounter.ShareSource {
	return mounter.ShareSource{Server: "127.0.0.1", Port: b.Port, Share: share}
}

func (b bench) login() Login { return Login{User: b.User, Password: b.Password} }

// open opens a share for the test.
func (b bench) open(share string) *Share {
	b.Helper()
	s, err := b.pool.Open(context.Background(), b.source(share), b.login(), Calls)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Release)
	return s
}

// file writes a file on the disk of the server.
func (b bench) file(name string, content []byte) {
	b.Helper()
	path := filepath.Join(b.Dir, smbtest.Share, name)
	if err := errors.Join(os.WriteFile(path, content, 0o666), os.Chmod(path, 0o666)); err != nil {
		b.Fatal(err)
	}
}

func content(size int) []byte {
	data := make([]byte, size)
	rand.New(rand.NewSource(int64(size))).Read(data)
	return data
}

// TestACopyIsWhole fails if the library copies files over 16 MiB on the server: they are cut off
// there without an error.
func TestACopyIsWhole(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	for _, size := range []int{0, 1, 1<<20 + 1, serverCopy - 1, serverCopy, serverCopy + 1, 100 << 20} {
		want := content(size)
		b.file("from", want)
		var p Progress
		to := fmt.Sprint("to-", size)
		if err := s.CopyFile(context.Background(), "from", to, &p); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		got, err := os.ReadFile(filepath.Join(b.Dir, smbtest.Share, to))
		if err != nil || len(got) != size || sha256.Sum256(got) != sha256.Sum256(want) {
			t.Errorf("the copy of %d bytes has %d bytes, the same content: %v, %v", size, len(got),
				bytes.Equal(got, want), err)
		}
		if p.Bytes.Load() != int64(size) || p.Files.Load() != 1 {
			t.Errorf("progress: %d bytes, %d files, want %d and 1", p.Bytes.Load(), p.Files.Load(), size)
		}
		if err := s.CopyFile(context.Background(), "from", to, &p); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a copy to an existing file: %v", err)
		}
	}
}

// TestHolesTakeNoSpace: parts of a large file that have only zeros are not written, at its end neither.
func TestHolesTakeNoSpace(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	data := content(1<<20 + 1)
	for _, at := range []int64{0, 5<<20 + 17, serverCopy + 7<<20} {
		const size = serverCopy + 8<<20 + 5
		f, err := os.Create(filepath.Join(b.Dir, smbtest.Share, "sparse"))
		if err == nil {
			_, err = f.WriteAt(data[:min(int64(len(data)), size-at)], at)
			err = errors.Join(err, f.Truncate(size), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		to := fmt.Sprint("to-", at)
		if err := s.CopyFile(context.Background(), "sparse", to, new(Progress)); err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(b.Dir, smbtest.Share, to)
		want, wantErr := os.ReadFile(f.Name())
		got, err := os.ReadFile(copied)
		if err = errors.Join(wantErr, err); err != nil || !bytes.Equal(got, want) {
			t.Errorf("data at %d: the copy has other content: %v", at, err)
		}
		var info unix.Stat_t
		if err := unix.Stat(copied, &info); err != nil || info.Blocks*512 > size/2 {
			t.Errorf("data at %d: the copy takes %d of %d bytes, %v", at, info.Blocks*512, size, err)
		}
	}
}

// TestNoFlushWritesAWholeHole: a filesystem without holes writes their zeros at the next write, for
// which the server has as long as for a request.
func TestNoFlushWritesAWholeHole(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	b.pool.flushEvery = 4 * chunk
	b.file("sparse", nil)
	if err := os.Truncate(filepath.Join(b.Dir, smbtest.Share, "sparse"), serverCopy+8*chunk); err != nil {
		t.Fatal(err)
	}
	if err := s.CopyFile(context.Background(), "sparse", "to", new(Progress)); err != nil {
		t.Fatal(err)
	}
	var info unix.Stat_t
	err := unix.Stat(filepath.Join(b.Dir, smbtest.Share, "to"), &info)
	if want := int64(serverCopy+8*chunk) / 4; err != nil || info.Blocks*512 < want*3/4 {
		t.Errorf("the copy takes %d bytes, %v, want a part for each flush: %d", info.Blocks*512, err, want)
	}
}

// canceledAt returns a context that ends while a message with this number is being sent: 0 is the
// begin of an operation with the context, and then all messages of its session count.
func canceledAt(number int) (ctx context.Context, cancel func()) {
	ctx, cancel = context.WithCancel(context.Background())
	var sent atomic.Int64
	return WithLease(ctx, func() bool {
		if sent.Add(1) > int64(number) {
			cancel()
		}
		return true
	}), cancel
}

// TestACanceledWriteLeavesOtherCalls fails without the guard: the session of the canceled write
// stays open, and the message of a later call overwrites one that may not be sent yet.
func TestACanceledWriteLeavesOtherCalls(t *testing.T) {
	b := serve(t)
	data := content(2 << 20) // about 10 messages
	for i := range 36 {
		ctx, cancel := canceledAt(i % 12)
		s, err := b.pool.Open(ctx, b.source(smbtest.Share), b.login(), Calls)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Create(ctx, fmt.Sprint("file-", i), data)
		conn := s.session.conn
		conn.mu.Lock()
		closed := conn.closed
		conn.mu.Unlock()
		if err != nil && !closed {
			t.Fatalf("a write ended with %v, and its session is open", err)
		}
		if ctx.Err() != nil { // a write that still succeeded does not wait for that
			await.True(t, "the session is dropped", func() bool { return !b.pool.usable(s.session) })
		}
		cancel()
		s.Release()
		s, err = b.pool.Open(context.Background(), b.source(smbtest.Share), b.login(), Calls)
		if err != nil {
			t.Fatalf("after %d canceled writes: %v", i+1, err)
		}
		if _, err := s.Stat(context.Background(), ""); err != nil {
			t.Fatalf("after %d canceled writes: %v", i+1, err)
		}
		s.Release()
	}
}

// TestACanceledCallSharesNoMessage fails without the guard under the race detector: another call
// overwrites a message that is being sent.
func TestACanceledCallSharesNoMessage(t *testing.T) {
	b := serve(t)
	data := content(2 << 20)
	var group sync.WaitGroup
	for caller := range 4 {
		s := b.open(smbtest.Share)
		group.Go(func() {
			for i := range 40 {
				if _, err := s.Stat(context.Background(), ""); err != nil && !errors.Is(err, backend.ErrUnavailable) {
					t.Error(err)
				}
				ctx, cancel := canceledAt(i % 20)
				err := s.CreateMarker(ctx, fmt.Sprintf("file-%d-%d", caller, i), data)
				cancel()
				if err != nil && !isContext(err) && !errors.Is(err, backend.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// TestFilesAreClosedWhenTheirCallEnds: a file that stays open could not be removed, and the library
// would close it in a finalizer.
func TestFilesAreClosedWhenTheirCallEnds(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	for _, end := range []string{"context", "lease"} {
		if err := s.Mkdir(context.Background(), end); err != nil {
			t.Fatal(err)
		}
		b.file(end+"/file", nil)
		valid := true
		ctx, cancel := context.WithCancel(WithLease(context.Background(), func() bool { return valid }))
		err := s.List(ctx, end, func(Entry) error {
			if end == "lease" {
				valid = false
			} else {
				cancel()
			}
			return nil
		})
		cancel()
		if err == nil {
			t.Errorf("%s: the list ended without an error", end)
		}
		if err := s.RemoveTree(context.Background(), end); err != nil {
			t.Error(err)
		}
	}
}

func noCheck([]byte) error { return nil }

// TestALeaseEndsBetweenMessages: a removal is several messages, and none is sent when the lease has
// ended. So the file stays, unless the lease lasts until the message that marks the file.
func TestALeaseEndsBetweenMessages(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	b.file("marker", nil)
	// The start asks, and then each message: open, mark for removal, close. The connection writes a
	// message in two parts.
	const marked, all = 1 + 2*2, 1 + 3*2
	for permitted := 0; ; permitted++ {
		asked := 0
		ctx := WithLease(context.Background(), func() bool {
			asked++
			return asked <= permitted
		})
		err := s.Remove(ctx, "marker")
		_, missing := s.Stat(context.Background(), "marker")
		if err == nil {
			if !errors.Is(missing, fs.ErrNotExist) {
				t.Errorf("after the removal: %v, want ErrNotExist", missing)
			}
			if permitted != all {
				t.Errorf("a removal has asked %d times, want %d", permitted, all)
			}
			return
		}
		if !errors.Is(err, backend.ErrUnavailable) {
			t.Fatalf("%d messages are permitted: %v, want ErrUnavailable", permitted, err)
		}
		if missing != nil && permitted < marked {
			t.Fatalf("%d messages are permitted: the file is gone: %v", permitted, missing)
		}
		if missing != nil { // only the close was refused
			b.file("marker", nil)
		}
	}
}

// TestRewriteChecksTheFileThatItWrites: the content changes only if the check permits it.
func TestRewriteChecksTheFileThatItWrites(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	b.file("marker", []byte("old"))
	ctx := context.Background()
	refused := errors.New("refused")
	if err := s.Rewrite(ctx, "marker", 10, func([]byte) error { return refused }, []byte("new")); !errors.Is(err,
		refused) {
		t.Errorf("a check that refuses: %v", err)
	}
	var old []byte
	err := s.Rewrite(ctx, "marker", 10, func(content []byte) error { old = content; return nil }, []byte("newer"))
	if err != nil || string(old) != "old" {
		t.Errorf("the check has got %q, %v, want \"old\"", old, err)
	}
	if content, err := s.Read(ctx, "marker", 10); err != nil || string(content) != "newer" {
		t.Errorf("Read = %q, %v, want \"newer\"", content, err)
	}
	if err := s.Rewrite(ctx, "missing", 10, noCheck, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v, want ErrNotExist", err)
	}
}

// TestPathsStayInTheirDirectory fails without the guard: the library passes ".." to the server,
// which resolves it.
func TestPathsStayInTheirDirectory(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	ctx := context.Background()
	for _, dir := range []string{"volume", "victim"} {
		if err := s.Mkdir(ctx, dir); err != nil {
			t.Fatal(err)
		}
	}
	b.file("victim/data", []byte("precious"))
	for _, path := range []string{"volume/../victim", "volume/..", "..", ".", "volume/./x", "volume//x", "/volume",
		"volume/", `volume\..\victim`, "volume/..\\victim", "a\x00b", "\xff"} {
		for name, err := range map[string]error{
			"Mkdir": s.Mkdir(ctx, path), "Create": s.Create(ctx, path, nil), "Remove": s.Remove(ctx, path),
			"RemoveTree": s.RemoveTree(ctx, path), "Rename from": s.Rename(ctx, path, "x"),
			"Rename to": s.Rename(ctx, "volume", path), "CopyFile": s.CopyFile(ctx, "victim/data", path, new(Progress)),
			"CopyTree": s.CopyTree(ctx, path, "volume", new(Progress)), "Rewrite": s.Rewrite(ctx, path, 1, noCheck, nil),
		} {
			if !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("%s(%q) = %v, want ErrInvalid", name, path, err)
			}
		}
	}
	if err := errors.Join(s.Remove(ctx, ""), s.Rename(ctx, "", "x")); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("the root of the share: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(b.Dir, smbtest.Share, "victim/data")); string(got) != "precious" {
		t.Errorf("the file of another directory: %q, %v", got, err)
	}
}

func TestTreesAreCopiedAndRemoved(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	ctx := context.Background()
	root := filepath.Join(b.Dir, smbtest.Share)
	want := map[string]string{}
	for i := range 300 {
		name := fmt.Sprintf("dir-%d/sub/file-%d", i%7, i)
		want[name] = strings.Repeat("x", i)
		path := filepath.Join(root, "from", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(want[name]), 0o666),
			os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Mkdir(ctx, "to"), s.CopyTree(ctx, "from", "to", new(Progress))); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err := filepath.WalkDir(filepath.Join(root, "to"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(filepath.Join(root, "to"), path)
		got[name] = string(data)
		if info, _ := d.Info(); !info.ModTime().Equal(time.Unix(1e9, 0)) {
			t.Errorf("%s has the time %s", name, info.ModTime())
		}
		return err
	})
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d files, want %d; %v", len(got), len(want), err)
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s differs", name)
		}
	}
	for range 2 {
		if err := s.RemoveTree(ctx, "to"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "to")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveTree: %v", err)
	}
}

// TestExclusiveOperations: markers depend on it.
func TestExclusiveOperations(t *testing.T) {
	b := serve(t)
	for round := range 8 {
		for name, operation := range map[string]func(s *Share, path string) error{
			"Mkdir":  func(s *Share, path string) error { return s.Mkdir(context.Background(), path) },
			"Create": func(s *Share, path string) error { return s.Create(context.Background(), path, []byte("x")) },
		} {
			var group sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				group.Go(func() {
					pool := NewPool()
					defer pool.Close()
					s, err := pool.Open(context.Background(), b.source(smbtest.Share), b.login(), Calls)
					if err != nil {
						errs[i] = err
						return
					}
					defer s.Release()
					errs[i] = operation(s, fmt.Sprint(name, round))
				})
			}
			group.Wait()
			won := 0
			for _, err := range errs {
				if err == nil {
					won++
				} else if !errors.Is(err, fs.ErrExist) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if won != 1 {
				t.Errorf("%s: %d callers succeeded, want 1", name, won)
			}
		}
	}
}

func TestErrorsOfServers(t *testing.T) {
	b := serve(t)
	gone := b.source(smbtest.Share)
	gone.Port = 1
	wrong := b.login()
	wrong.Password = "wrong"
	for name, row := range map[string]struct {
		source mounter.ShareSource
		login  Login
		want   error
	}{
		"wrong password":         {b.source(smbtest.Share), wrong, backend.ErrUnauthenticated},
		"no such share":          {b.source("none"), b.login(), backend.ErrPrecondition},
		"another user's share":   {b.source(smbtest.Denied), b.login(), backend.ErrDenied},
		"nothing at the address": {gone, b.login(), backend.ErrUnavailable},
		"no guests":              {b.source(smbtest.Share), Login{Guest: true}, backend.ErrUnauthenticated},
	} {
		s, err := b.pool.Open(context.Background(), row.source, row.login, Calls)
		if !errors.Is(err, row.want) || strings.Contains(err.Error(), "wrong"+"\"") {
			t.Errorf("%s: %v, %v, want %v", name, s, err, row.want)
		}
	}
	ctx := context.Background()
	readOnly := b.open(smbtest.ReadOnly)
	if err := readOnly.Mkdir(ctx, "dir"); !errors.Is(err, backend.ErrDenied) {
		t.Errorf("Mkdir on a read-only share: %v", err)
	}
	if err := b.open(smbtest.Encrypted).Create(ctx, "file", []byte("x")); err != nil {
		t.Errorf("an encrypted share: %v", err)
	}
	s := b.open(smbtest.Share)
	if err := s.Mkdir(ctx, "none/dir"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Mkdir without a parent: %v", err)
	}
	if err := errors.Join(s.Mkdir(ctx, "full"), s.Create(ctx, "full/file", nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "full"); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("Remove of a directory with a file: %v", err)
	}
	if _, err := s.Read(ctx, "full/none", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of a missing file: %v", err)
	}
	if err := s.Create(ctx, "full/large", []byte("12345")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(ctx, "full/large", 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Read over the limit: %v", err)
	}
	if total, available, err := s.Space(ctx, ""); err != nil || total <= 0 || available <= 0 || available > total {
		t.Errorf("Space = %d, %d, %v", total, available, err)
	}
}

// TestASilentServer: calls end with their context, leave nothing behind, and work again when the
// server answers.
func TestASilentServer(t *testing.T) {
	b := serve(t)
	s, err := b.pool.Open(context.Background(), b.source(smbtest.Share), b.login(), Calls)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Silence(); err != nil {
		t.Fatal(err)
	}
	defer b.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	if _, err := s.Stat(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stat on a silent server: %v", err)
	}
	cancel()
	s.Release()
	runtime.GC()
	before := runtime.NumGoroutine()
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	var group sync.WaitGroup
	for i := range 1000 {
		group.Go(func() {
			s, err := b.pool.Open(ctx, b.source(smbtest.Share), b.login(), Use(i)) // with a session of its own
			if !isContext(err) && !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("Open on a silent server: %v, %v", s, err)
			}
		})
	}
	group.Wait()
	cancel()
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	if err := Answers(ctx, b.source(smbtest.Share)); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Answers of a silent server: %v", err)
	}
	cancel()
	await.NoError(t, "the goroutines have ended", func() error {
		if n := runtime.NumGoroutine(); n > before+3 {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	// the server answers the connections of the silence first
	s = await.Value(b, "the server answers", func() (*Share, error) {
		s, err := b.pool.Open(context.Background(), b.source(smbtest.Share), b.login(), Calls)
		if err != nil && !errors.Is(err, backend.ErrUnavailable) {
			t.Fatal(err)
		}
		return s, err
	})
	defer s.Release()
	if _, err := s.Stat(context.Background(), ""); err != nil {
		t.Errorf("after the silence: %v", err)
	}
	if err := Answers(context.Background(), b.source(smbtest.Share)); err != nil {
		t.Errorf("Answers: %v", err)
	}
}

// TestARestartedServer: a share that is open works with another session.
func TestARestartedServer(t *testing.T) {
	b := serve(t)
	s := b.open(smbtest.Share)
	ctx := context.Background()
	if err := s.Create(ctx, "file", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Kill(), b.Restart()); err != nil {
		t.Fatal(err)
	}
	s.Stat(ctx, "file") // may see the end of the connection
	if got, err := s.Read(ctx, "file", 10); err != nil || string(got) != "x" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
}

// TestMessagesAreSigned: an attacker on the way changes the answers of a server that does not
// demand signatures. The client notices that.
func TestMessagesAreSigned(t *testing.T) {
	b := serve(t)
	b.file("file", []byte("precious"))
	source, forged := b.forge(func(message []byte) bool {
		const read = 8
		if binary.LittleEndian.Uint16(message[command:]) != read {
			return false
		}
		message[len(message)-1] ^= 1
		return true
	})
	s, err := b.pool.Open(context.Background(), source, b.login(), Calls)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	content, err := s.Read(await.Context(t), "file", 100)
	if err == nil || forged.Load() == 0 {
		t.Errorf("with %d forged answers: %q, %v", forged.Load(), content, err)
	}
}

// TestSignaturesStay fails without the guard: an attacker on the way sets the flag of a guest in
// the last answer to the log in, and the library then neither signs nor verifies messages.
func TestSignaturesStay(t *testing.T) {
	b := serve(t)
	source, forged := b.forge(func(message []byte) bool {
		const status, sessionSetup, sessionFlags, guest = 8, 1, 66, 1 // [MS-SMB2] 2.2.6
		if binary.LittleEndian.Uint16(message[command:]) != sessionSetup ||
			binary.LittleEndian.Uint32(message[status:]) != 0 {
			return false
		}
		message[sessionFlags] |= guest
		return true
	})
	s, err := b.pool.Open(context.Background(), source, b.login(), Calls)
	if !errors.Is(err, backend.ErrUnauthenticated) || forged.Load() == 0 {
		t.Errorf("with %d forged answers: %v, %v", forged.Load(), s, err)
	}
}

const command = 12 // its offset in a message

// forge returns a source whose answers forge changes, and the number of those for which it returned
// true.
func (b bench) forge(forge func(message []byte) bool) (mounter.ShareSource, *atomic.Int64) {
	b.Helper()
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { proxy.Close() })
	forged := new(atomic.Int64)
	go func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			go forward(conn, fmt.Sprint("127.0.0.1:", b.Port), func(message []byte) {
				if forge(message) {
					forged.Add(1)
				}
			})
		}
	}()
	source := b.source(smbtest.Share)
	source.Port = proxy.Addr().(*net.TCPAddr).Port
	return source, forged
}

// forward passes messages between a client and a server, and the answers through change. Each
// message has its length in four bytes before it. [MS-SMB2] 2.1, 2.2.1, 2.2.20.
func forward(client net.Conn, address string, change func(message []byte)) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	go io.Copy(server, client)
	for {
		length := make([]byte, 4)
		if _, err := io.ReadFull(server, length); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(length))
		if _, err := io.ReadFull(server, message); err != nil {
			return
		}
		if len(message) > 64 {
			change(message)
		}
		if _, err := client.Write(slices.Concat(length, message)); err != nil {
			return
		}
	}
}

func TestLoginsAreNotPrinted(t *testing.T) {
	l := Login{User: "alice", Password: "secret", CCache: []byte("secret")}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if text := fmt.Sprintf(format, l); text != "***" {
			t.Errorf("%s: %s", format, text)
		}
	}
}

// TestADamagedCredentialCache: the library panics on some of these.
func TestADamagedCredentialCache(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "krb5.conf")
	if err := os.WriteFile(conf, []byte("[libdefaults]\ndefault_realm = EXAMPLE.TEST\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, cache := range []string{"x", "\x05", "\x05\x04", "\x05\x04\x00\x0c\x00\x01\x00", strings.Repeat("\x05\x04", 40)} {
		if _, err := (Login{CCache: []byte(cache), Krb5Conf: conf}).kerberos(); !errors.Is(err, backend.ErrUnauthenticated) {
			t.Errorf("%q: %v", cache, err)
		}
	}
	if _, err := (Login{Realm: "EXAMPLE.TEST", Krb5Conf: "/none"}).kerberos(); !errors.Is(err, backend.ErrNotReady) {
		t.Errorf("a missing krb5.conf: %v", err)
	}
}

// TestSessionsThatVerifyAreFew: some servers have few sessions, and a node that starts mounts all of
// its volumes at once.
func TestSessionsThatVerifyAreFew(t *testing.T) {
	b := serve(t)
	open := func(ctx context.Context) (*Share, error) {
		return b.pool.Open(ctx, b.source(smbtest.Share), Login{User: b.User, Password: b.Password}, Verify)
	}
	var all []*Share
	for range maxVerify {
		s, err := open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	counted := func(want int) {
		t.Helper()
		if n := len(b.pool.verify[b.source(smbtest.Share).Server]); n != want {
			t.Errorf("%d sessions count, want %d", n, want)
		}
	}
	counted(maxVerify)
	waits, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := b.pool.enter(waits, b.source(smbtest.Share).Server); ended <- err }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("one more session: %v, want the end of the context", err)
	}
	all[0].Release()
	counted(maxVerify - 1)
	s, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counted(maxVerify)
	for _, s := range append(all[1:], s) {
		s.Release()
	}
	if _, err := b.pool.Open(t.Context(), b.source(smbtest.Share), Login{User: b.User, Password: "wrong"}, Verify); !errors.Is(err,
		backend.ErrUnauthenticated) {
		t.Errorf("a wrong password: %v", err)
	}
	counted(0)
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	for k := range b.pool.sessions {
		if k.use == Verify {
			t.Errorf("a session stays open after its Release, for the share %s", k.share)
		}
	}
}
