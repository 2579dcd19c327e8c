package mounter

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// newFakeWindowsBench is a bench on this machine with the logic of Windows.
func newFakeWindowsBench(t *testing.T) *bench {
	b := newBench(t, func(dir string) Host {
		h, err := NewFakeWindows(dir, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return h
	})
	b.options, b.unclean = nil, nil
	return b
}

func TestFakeDisksAreAHostOfDisks(t *testing.T) {
	testDiskHost(t, newFakeNode(t).disks, osFiles{}, t.TempDir())
}

func TestFakeSharesAreAHostOfShares(t *testing.T) {
	n, user := newFakeNode(t), Credentials{Username: "user", Password: "Passw0rd"}
	if err := n.AddShare("//srv/share", t.TempDir(), user); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	testShareHost(t, n.FakeWindows.shares, n.disks, shareTrial{root: `\\srv\share`, missing: `\\srv\missing`,
		credentials: user, dir: dir})
	for _, source := range []string{"//srv/share/dir", "//srv:446/share", "share"} {
		if err := n.AddShare(source, t.TempDir(), user); !errors.Is(err, ErrPath) {
			t.Errorf("AddShare of %s: %v", source, err)
		}
	}
}

// TestDataFlowsThroughFakeShares: two directories of a share have one mapping, and data.
func TestDataFlowsThroughFakeShares(t *testing.T) {
	n, files := newFakeNode(t), t.TempDir()
	user := Credentials{Domain: "corp", Username: "user", Password: "Passw0rd"}
	if err := errors.Join(n.AddShare("//srv/Share", files, user), os.Mkdir(filepath.Join(files, "a"), 0o700),
		os.Mkdir(filepath.Join(files, "b"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"a", "b"} {
		m := Mount{Kind: Share, Source: "//srv/share/" + dir, Credentials: user}
		n.mount(m, n.path(dir))
		if err := os.WriteFile(filepath.Join(n.path(dir), "file"), []byte(dir), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(files, dir, "file")); err != nil || string(data) != dir {
			t.Errorf("on the share: %q, %v", data, err)
		}
	}
	missing := Mount{Kind: Share, Source: "//srv/share/c", Credentials: user}
	n.refused(missing, n.path("c"), ErrNotFound)
	wrong := Mount{Kind: Share, Source: "//srv/share/a", Credentials: Credentials{Username: "other", Password: "x"}}
	n.refused(wrong, n.path("c"), ErrBusy)
	n.unmount(n.path("a"))
	if !mappedRoot(t, n.FakeWindows.shares, `\\srv\share`) {
		t.Error("a share in use is not mapped")
	}
	n.unmount(n.path("b"))
	for deadline := time.Now().Add(time.Minute); mappedRoot(t, n.FakeWindows.shares, `\\srv\share`); {
		if time.Now().After(deadline) {
			t.Fatal("still mapped after a minute")
		}
		time.Sleep(time.Millisecond)
	}
	n.refused(wrong, n.path("c"), ErrAccess)
}

func TestFakeWindowsMakesImages(t *testing.T) { testImages(t, newFakeWindowsBench, options.NTFS) }

// TestDataFlowsThroughFakeImages: the data of a pod is in the image, also when it is mounted again.
func TestDataFlowsThroughFakeImages(t *testing.T) {
	b := newFakeWindowsBench(t)
	v := Mount{Kind: Image, Source: filepath.Join(b.storage, "v.vhdx"), FSType: options.NTFS}
	if err := b.MakeImage(t.Context(), v.Source, gib, options.NTFS); err != nil {
		t.Fatal(err)
	}
	b.mount(v, b.path("staging"))
	b.mount(v.BindFrom(b.path("staging")), b.path("target"))
	if err := os.WriteFile(filepath.Join(b.path("target"), "file"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.unmount(b.path("target"), b.path("staging"))
	b.mount(v, b.path("other"))
	if data, err := os.ReadFile(filepath.Join(b.path("other"), "file")); err != nil || string(data) != "data" {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(b.path("staging"), "file")); err == nil {
		t.Error("the data is reached without a mount")
	}
}
