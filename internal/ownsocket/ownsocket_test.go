//go:build !windows

package ownsocket

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// newPath returns a path that is short enough for a socket.
func newPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "own")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func listen(t *testing.T, path string) *Socket {
	t.Helper()
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestASocketIsItsOwnersAlone(t *testing.T) {
	path := newPath(t)
	listen(t, path)
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v, want mode 0600", info, err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestCloseRemovesTheSocketOfThisListenerOnly(t *testing.T) {
	path := newPath(t)
	first, second := listen(t, path+"1"), listen(t, path+"2")
	if err := first.Rename(path); err != nil {
		t.Fatal(err)
	}
	if first.Replaced() {
		t.Error("replaced before another socket has the path")
	}
	if err := second.Rename(path); err != nil {
		t.Fatal(err)
	}
	if !first.Replaced() || second.Replaced() {
		t.Errorf("replaced: %t and %t, want the first alone", first.Replaced(), second.Replaced())
	}
	for range 2 {
		first.Close()
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the first listener removed the second's socket: %v", err)
		}
	}
	second.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestAPathThatIsTaken(t *testing.T) {
	path := newPath(t)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil {
		t.Error("no error")
	}
	if data, err := os.ReadFile(path); string(data) != "precious" {
		t.Errorf("the file holds %q, %v", data, err)
	}
}

func TestASocketIsClosedOnce(t *testing.T) {
	path := newPath(t)
	first := listen(t, path)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	listen(t, path)
	var err error
	// The filesystem may give the next socket the inode number of the first, as ext4 does.
	if first.info, err = os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	first.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a second Close removed the next socket: %v", err)
	}
}

func TestARemovedSocketIsMadeAgain(t *testing.T) {
	path := newPath(t)
	s := listen(t, path)
	accepted := make(chan net.Conn)
	ended := make(chan error)
	go func() {
		for {
			conn, err := s.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- conn
		}
	}()
	connect := func() (client, server net.Conn) {
		t.Helper()
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server = <-accepted
		t.Cleanup(func() { client.Close(); server.Close() })
		return client, server
	}
	client, server := connect()
	if restored, err := s.Restore(); restored || err != nil {
		t.Errorf("Restore of a socket that exists = %t, %v", restored, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if restored, err := s.Restore(); !restored || err != nil || s.Replaced() {
		t.Fatalf("Restore of a removed socket = %t, %v; replaced: %t", restored, err, s.Replaced())
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v, want mode 0600", info, err)
	}
	connect()
	if _, err := client.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Read(make([]byte, 1)); n != 1 {
		t.Errorf("a connection of the removed socket: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed socket = %v", err)
	}
	if restored, err := s.Restore(); restored || err != nil {
		t.Errorf("Restore of a closed socket = %t, %v", restored, err)
	}
}

// TestRestoreLeavesTheSocketOfAnotherProcess that took the path after the removal.
func TestRestoreLeavesTheSocketOfAnotherProcess(t *testing.T) {
	path := newPath(t)
	s := listen(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other := listen(t, path)
	if restored, err := s.Restore(); restored || err != nil || !s.Replaced() || other.Replaced() {
		t.Errorf("Restore = %t, %v; replaced: %t and %t", restored, err, s.Replaced(), other.Replaced())
	}
}
