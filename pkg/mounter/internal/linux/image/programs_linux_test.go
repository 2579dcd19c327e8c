package image_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/testdisk"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/image"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// format formats an image, and gives up a program that makes no progress for limit.
func format(b *linuxtest.Bench, m mounter.Mount, limit time.Duration) error {
	b.T.Helper()
	b.Host.(*linux.Host).Tools.Limit = limit
	f, err := os.OpenFile(m.Source, os.O_RDWR, 0)
	if err != nil {
		b.T.Fatal(err)
	}
	defer f.Close()
	return image.FillImage(b.Host.(*linux.Host).Images, context.Background(), f, 320<<20, "ext4")
}

func TestProgramWithoutProgressIsGivenUp(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	file := filepath.Join(t.TempDir(), "pid")
	linuxtest.UseTool(t, "mkfs.ext4", "echo $$ > "+file+"; exec sleep 1000")
	if err := format(b, m, time.Second); !errors.Is(err, mounter.ErrStalled) || !strings.Contains(err.Error(),
		"no progress") {
		t.Fatalf("fillImage = %v, want ErrStalled for lack of progress", err)
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
		t.Error("the program still runs")
	}
	if all, err := b.Failing(); err != nil || len(all) > 0 {
		t.Errorf("after its end the image is in the state %v, %v", all, err)
	}
}

// TestProgramWithProgressIsNotGivenUp: a program may run longer than the limit while it makes
// progress.
func TestProgramWithProgressIsNotGivenUp(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "")
	linuxtest.UseTool(t, "mkfs.ext4", "i=0; while [ $i -lt 60 ]; do echo; i=$((i+1)); sleep 0.1; done")
	if err := format(b, m, 4*time.Second); err != nil {
		t.Errorf("fillImage = %v", err)
	}
}

// TestUnkillableProgramMakesTheImageStalled: the program waits in the kernel for the lock of a
// file. No other call uses the image until the program ends.
func TestUnkillableProgramMakesTheImageStalled(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "ext4")
	dir := b.Path("locked")
	linuxtest.Mkdir(t, dir)
	testdisk.Filesystem{Type: "xfs"}.Mount(t, dir)
	held := filepath.Join(dir, "held")
	if err := os.WriteFile(held, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	p := hang.Write(t, held)
	linuxtest.UseTool(t, "mkfs.ext4", "exec cat "+held)
	if err := format(b, m, time.Second); !errors.Is(err, mounter.ErrStalled) {
		t.Fatalf("fillImage = %v, want ErrStalled", err)
	}
	all, err := b.Failing()
	if err != nil || all[m.Source].Kind != mounter.Stalled || !strings.Contains(all[m.Source].Message, "mkfs.ext4") {
		t.Errorf("the image is in the state %+v, %v, want Stalled by mkfs.ext4", all, err)
	}
	b.Refused(m, b.Path("staging"), mounter.ErrStalled)
	if err := b.RenewUUID(m); !errors.Is(err, mounter.ErrStalled) {
		t.Errorf("NewUUID = %v, want ErrStalled", err)
	}
	p.Release()
	await.True(t, "the image is free", func() bool {
		all, err := b.Failing()
		return err == nil && len(all) == 0
	})
	b.MustMount(m, b.Path("staging"))
	b.MustUnmount(b.Path("staging"))
}
