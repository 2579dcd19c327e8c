//go:build !windows

package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/unprivileged"
)

func TestASocketThatMayNotBeOpened(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	for _, c := range []struct {
		name, bars string // the file in the way, below the test's directory
		mode       fs.FileMode
		want       string
	}{
		{"the socket has no permission for its owner", "dir/s", 0,
			"dir/s has owner %d:%d and mode 0000: set runAsUser: 0 for this container, or give a group write " +
				"permission"},
		{"the directory of the socket", "dir", 0,
			"dir has owner %d:%d and mode 0000: set runAsUser: 0 for this container, or give a group search " +
				"permission"},
		{"a directory above", "", 0o600,
			" has owner %d:%d and mode 0600: set runAsUser: 0 for this container, or give a group search permission"},
	} {
		t.Run(c.name, func(t *testing.T) {
			top, err := os.MkdirTemp("", "")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(top)
			if err := os.Mkdir(filepath.Join(top, "dir"), 0o700); err != nil {
				t.Fatal(err)
			}
			socket := NewSocket(filepath.Join(top, "dir", "s"))
			(&small{}).serve(t, socket.path)
			bars := filepath.Join(top, c.bars)
			if err := os.Chmod(bars, c.mode); err != nil {
				t.Fatal(err)
			}
			conn, err := dial(t.Context(), socket, newCalls(nil, -1), func() {})
			if err != nil {
				t.Fatal(err)
			}
			for state := conn.GetState(); socket.Denied() == nil; state = conn.GetState() {
				if !conn.WaitForStateChange(await.Context(t), state) {
					t.Fatal("nobody noticed")
				}
			}
			got, want := socket.Denied(), fmt.Sprintf(c.want, os.Geteuid(), os.Getegid())
			who := fmt.Sprintf("%s: connect: permission denied: this process has uid %d, gid %d", socket.path,
				os.Geteuid(), os.Getegid())
			if !errors.Is(got, fs.ErrPermission) || !strings.Contains(got.Error(), want) ||
				!strings.Contains(got.Error(), who) {
				t.Errorf("got %v, want %q and %q", got, who, want)
			}
			if err := os.Chmod(bars, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := awaitConnection(await.Context(t), conn, socket); err != nil || socket.Denied() != nil {
				t.Errorf("after a chmod: %v, %v", err, socket.Denied())
			}
		})
	}
}

func TestRemedies(t *testing.T) {
	for _, c := range []struct {
		name       string
		uid, owner uint32
		groups     []int
		group      int
		mode, need uint32
		want       string
	}{
		{"a socket of root", 65532, 0, []int{65532}, 0, 0o755, mayWrite,
			"set runAsUser: 0 for this container, or give a group write permission"},
		{"a socket of another user", 0, 1000, []int{0}, 1000, 0o755, mayWrite, "set runAsUser: 1000 "},
		{"the group may not write", 65532, 0, []int{65532, 2000}, 2000, 0o755, mayWrite, "set runAsUser: 0 "},
		{"the group may write", 65532, 0, []int{65532, 2000}, 2000, 0o775, mayWrite, "SELinux"},
		{"all may write", 65532, 0, []int{65532}, 0, 0o777, mayWrite, "SELinux"},
		{"the owner may write", 0, 0, []int{0}, 0, 0o755, mayWrite, "SELinux"},
		{"a registry of root", 65532, 0, []int{65532}, 0, 0o755, MayAddFile,
			"set runAsUser: 0 for this container, or give a group write and search permission"},
		{"a registry where only names may be written", 65532, 0, []int{65532}, 0, 0o752, MayAddFile,
			"set runAsUser: 0 "},
	} {
		if got := remedy(c.uid, c.groups, c.owner, c.group, c.mode, c.need); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
