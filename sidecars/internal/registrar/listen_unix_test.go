//go:build !windows

package registrar

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/unprivileged"
)

func TestTheSocketIsItsOwnersAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	l, err := listen(n.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Lstat(n.socket())
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v, want 0600", info.Mode(), err)
	}
}

// Windows cannot replace a socket by another in a single step.
func TestARegistrarTakesOverWhenItsSuccessorEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	(&driver{name: "csi.example.com"}).serve(t, n)
	p := n.start(t)
	await.True(t, "the socket is there", func() bool { return p.served.Load() != nil })
	other, err := net.Listen("unix", n.socket()+"2")
	if err != nil {
		t.Fatal(err)
	}
	other.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Rename(n.socket()+"2", n.socket()); err != nil {
		t.Fatal(err)
	}
	its, err := os.Lstat(n.socket())
	if err != nil {
		t.Fatal(err)
	}
	// other is open until the end, so nothing else gets its inode's number.
	defer other.Close()
	os.Remove(n.socket())
	await.True(t, "the socket is the registrar's again", func() bool {
		info, err := os.Lstat(n.socket())
		return err == nil && !os.SameFile(info, its) && p.check(t.Context()) == nil
	})
	p.end(t)
	if exists(n.socket()) {
		t.Error("the socket is there after the end")
	}
}

func TestARegistryThatMayNotBeWritten(t *testing.T) {
	if unprivileged.Again(t) {
		return
	}
	n := newNode(t)
	(&driver{name: "csi.example.com"}).serve(t, n)
	n.registry = filepath.Join(n.registry, "registry")
	if err := os.Mkdir(n.registry, 0o500); err != nil {
		t.Fatal(err)
	}
	p := n.start(t)
	await.True(t, "the registrar is not ready, with the remedy", func() bool {
		err := p.Ready()
		return err != nil && strings.Contains(err.Error(),
			"mode 0500: set runAsUser: 0 for this container, or give a group write and search permission")
	})
	if err := os.Chmod(n.registry, 0o700); err != nil {
		t.Fatal(err)
	}
	n.kubelet(nil).awaitDriver(t, 0)
	p.end(t)
}
