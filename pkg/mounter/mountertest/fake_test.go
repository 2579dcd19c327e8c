package mountertest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

func TestFakeKeepsTheContract(t *testing.T) {
	mountercontract.TestMounter(t, func(t *testing.T) *mountercontract.Bench {
		return mountercontract.NewBench(t, func(dir string) mounter.Host { return NewFake(dir) })
	})
}

func TestFakeFailsOnDemand(t *testing.T) {
	fake := NewFake(t.TempDir())
	fake.Err = errors.New("on demand")
	b := mountercontract.NewBench(t, func(dir string) mounter.Host { fake.dir = dir; return fake })
	b.Refused(b.Volume("v"), b.Path("target"), fake.Err)
	if err := b.Unmount(context.Background(), b.Path("target")); !errors.Is(err, fake.Err) {
		t.Errorf("Unmount = %v", err)
	}
	if len(fake.Mounts()) != 0 || b.Files.Exists(b.Path("target")) {
		t.Error("a failing Mount changed something")
	}
}

func TestFakeKeepsTheContractOfImages(t *testing.T) {
	mountercontract.TestImages(t, func(t *testing.T) *mountercontract.Bench {
		return mountercontract.NewBench(t, func(dir string) mounter.Host { return NewFake(dir) })
	}, (*mountercontract.Bench).FakeImage)
}

func TestFakeRecordsTuning(t *testing.T) {
	fake := NewFake(t.TempDir())
	b := mountercontract.NewBench(t, func(dir string) mounter.Host { fake.dir = dir; return fake })
	m := b.FakeImage("image", "xfs")
	b.MustMount(m, b.Path("staging"))
	m.Buffered, m.ReadAhead = true, 4096
	if err := b.Tune(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	if got := fake.Mounts()[b.Path("staging")]; !got.Buffered || got.ReadAhead != 4096 {
		t.Errorf("the image is mounted as %+v", got)
	}
}

func TestFakeMakesImages(t *testing.T) {
	mountercontract.TestImageFiles(t, func(t *testing.T) *mountercontract.Bench {
		return mountercontract.NewBench(t, func(dir string) mounter.Host { return NewFake(dir) })
	}, "ext4", "xfs", "btrfs")
}

// TestAFakeDeviceIsFormattedOnceOrRefused: a file plays the device.
func TestAFakeDeviceIsFormattedOnceOrRefused(t *testing.T) {
	b := mountercontract.NewBench(t, func(dir string) mounter.Host { return NewFake(dir) })
	file := filepath.Join(b.Storage, "disk")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	m, staging := mounter.Mount{Kind: mounter.BlockDevice, Source: file, FSType: "ext4", Serial: "s", ReadOnly: true}, b.Path("staging")
	b.Refused(m, staging, mounter.ErrDevice)
	m.ReadOnly = false
	b.MustMount(m, staging)
	made, _ := os.ReadFile(file)
	b.MustUnmount(staging)
	b.MustMount(m, staging)
	b.MustMount(m.BindFrom(staging), b.Path("target"))
	if again, _ := os.ReadFile(file); !bytes.Equal(again, made) || !b.IsMounted(m, b.Path("target")) {
		t.Error("it was formatted again, or is not at the target")
	}
	b.MustUnmount(b.Path("target"), staging)
	other := m
	other.FSType = "xfs"
	b.Refused(other, staging, mounter.ErrDevice)
	small := m
	small.Size = 8192
	b.Refused(small, staging, mounter.ErrDevice)
	raw := m
	raw.FSType = ""
	b.MustMount(raw, staging)
	b.MustMount(raw.BindFrom(staging), b.Path("node"))
	if u, err := b.Usage(context.Background(), b.Path("node")); err != nil || u.TotalBytes != 4096 ||
		!b.IsMounted(raw, staging) {
		t.Errorf("Usage = %+v, %v, mounted: %v", u, err, b.IsMounted(raw, staging))
	}
	b.MustUnmount(b.Path("node"), staging)
	if b.IsMounted(mounter.Mount{Kind: mounter.BlockDevice, FSType: "ext4"}, staging) {
		t.Error("a volume that is not attached counts as mounted")
	}
}

func TestTheFakeMountsShares(t *testing.T) {
	dir := t.TempDir()
	f, ctx := NewFake(dir), context.Background()
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	m := mounter.Mount{Kind: mounter.Share, Source: "//SERVER/Share/dir", Options: []string{"gid=1"}, Credentials: mounter.Credentials{Password: "a"}}
	steps := []error{f.Mount(ctx, m, staging), f.Mount(ctx, m.BindFrom(staging), target)}
	m.Source, m.Credentials.Password = "//server/share/dir", "b"
	if err := errors.Join(append(steps, f.Mount(ctx, m, staging))...); err != nil {
		t.Fatal(err)
	}
	if got := f.Mounts()[staging]; got.Credentials.Password != "b" || !slices.Contains(got.Options, "gid=1") {
		t.Errorf("the mount has options %q, and the new password: %v", got.Options, got.Credentials.Password == "b")
	}
	for _, path := range []string{staging, target} {
		if mounted, err := f.Mounted(ctx, m, path); !mounted || err != nil {
			t.Errorf("%s: mounted %v, %v", path, mounted, err)
		}
	}
	other := m
	other.Source += "/sub"
	if mounted, err := f.Mounted(ctx, other, target); mounted || err != nil {
		t.Errorf("another directory: mounted %v, %v", mounted, err)
	}
	other.Source, other.Options = m.Source, []string{"gid=2"}
	for what, err := range map[string]error{
		"another group":  f.Mount(ctx, other, staging),
		"a bad source":   f.Mount(ctx, mounter.Mount{Kind: mounter.Share, Source: "//server/share/.."}, filepath.Join(dir, "bad")),
		"a bad password": f.Mount(ctx, mounter.Mount{Kind: mounter.Share, Source: "//server/share", Credentials: mounter.Credentials{Password: "\x00"}}, filepath.Join(dir, "bad")),
	} {
		want := map[string]error{"another group": mounter.ErrConflict, "a bad source": mounter.ErrPath, "a bad password": mounter.ErrOption}[what]
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	if err := errors.Join(f.Remove(ctx, target), f.Unmount(ctx, staging)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "bad")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a mount that failed left its directory: %v", err)
	}
}
