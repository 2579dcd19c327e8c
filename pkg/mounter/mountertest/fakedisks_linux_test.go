package mountertest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// newFakeWindowsBench is a bench on this machine with the logic of Windows.
func newFakeWindowsBench(t *testing.T) *mountercontract.Bench {
	b := mountercontract.NewBench(t, func(dir string) mounter.Host {
		h, err := NewFakeWindows(dir, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return h
	})
	b.Options, b.Unclean = nil, nil
	return b
}

func TestFakeDisksAreAHostOfDisks(t *testing.T) {
	linkstest.DiskHost(t, newFakeNode(t).disks, mountercontract.OSFiles{}, t.TempDir())
}

func TestFakeSharesAreAHostOfShares(t *testing.T) {
	n, user := newFakeNode(t), mounter.Credentials{Username: "user", Password: "Passw0rd"}
	if err := n.AddShare("//srv/share", t.TempDir(), user); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	linkstest.ShareHost(t, n.FakeWindows.shares, n.disks, linkstest.ShareTrial{Root: `\\srv\share`,
		Missing:     `\\srv\missing`,
		Credentials: user, Dir: dir})
	for _, source := range []string{"//srv/share/dir", "//srv:446/share", "share"} {
		if err := n.AddShare(source, t.TempDir(), user); !errors.Is(err, mounter.ErrPath) {
			t.Errorf("AddShare of %s: %v", source, err)
		}
	}
}

// TestDataFlowsThroughFakeShares: two directories of a share have one mapping, and data.
func TestDataFlowsThroughFakeShares(t *testing.T) {
	n, files := newFakeNode(t), t.TempDir()
	user := mounter.Credentials{Domain: "corp", Username: "user", Password: "Passw0rd"}
	if err := errors.Join(n.AddShare("//srv/Share", files, user), os.Mkdir(filepath.Join(files, "a"), 0o700),
		os.Mkdir(filepath.Join(files, "b"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"a", "b"} {
		m := mounter.Mount{Kind: mounter.Share, Source: "//srv/share/" + dir, Credentials: user}
		n.MustMount(m, n.Path(dir))
		if err := os.WriteFile(filepath.Join(n.Path(dir), "file"), []byte(dir), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(files, dir, "file")); err != nil || string(data) != dir {
			t.Errorf("on the share: %q, %v", data, err)
		}
	}
	missing := mounter.Mount{Kind: mounter.Share, Source: "//srv/share/c", Credentials: user}
	n.Refused(missing, n.Path("c"), mounter.ErrNotFound)
	wrong := mounter.Mount{Kind: mounter.Share, Source: "//srv/share/a",
		Credentials: mounter.Credentials{Username: "other", Password: "x"}}
	n.Refused(wrong, n.Path("c"), mounter.ErrBusy)
	n.MustUnmount(n.Path("a"))
	if !linkstest.MappedRoot(t, n.FakeWindows.shares, `\\srv\share`) {
		t.Error("a share in use is not mapped")
	}
	n.MustUnmount(n.Path("b"))
	await.True(t, "the share is not mapped any more", func() bool {
		return !linkstest.MappedRoot(t, n.FakeWindows.shares, `\\srv\share`)
	})
	n.Refused(wrong, n.Path("c"), mounter.ErrAccess)
}

func TestFakeWindowsMakesImages(t *testing.T) {
	mountercontract.TestImageFiles(t, newFakeWindowsBench, options.NTFS)
}

// TestDataFlowsThroughFakeImages: the data of a pod is in the image, also when it is mounted again.
func TestDataFlowsThroughFakeImages(t *testing.T) {
	b := newFakeWindowsBench(t)
	v := mounter.Mount{Kind: mounter.Image, Source: filepath.Join(b.Storage, "v.vhdx"), FSType: options.NTFS}
	if err := b.MakeImage(t.Context(), v.Source, gib, options.NTFS); err != nil {
		t.Fatal(err)
	}
	b.MustMount(v, b.Path("staging"))
	b.MustMount(v.BindFrom(b.Path("staging")), b.Path("target"))
	if err := os.WriteFile(filepath.Join(b.Path("target"), "file"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.MustUnmount(b.Path("target"), b.Path("staging"))
	b.MustMount(v, b.Path("other"))
	if data, err := os.ReadFile(filepath.Join(b.Path("other"), "file")); err != nil || string(data) != "data" {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(b.Path("staging"), "file")); err == nil {
		t.Error("the data is reached without a mount")
	}
}
