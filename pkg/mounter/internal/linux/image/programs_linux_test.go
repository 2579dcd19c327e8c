package image_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
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
	limit, pid := time.Second, "" // on a slow machine the limit passes before the program does anything
	await.True(t, "the program has begun when it is given up", func() bool {
		if err := format(b, m, limit); !errors.Is(err, mounter.ErrStalled) || !strings.Contains(err.Error(),
			"no progress") {
			t.Fatalf("fillImage = %v, want ErrStalled for lack of progress", err)
		}
		untilFree(b)
		limit *= 2
		text, _ := os.ReadFile(file)
		var begun bool
		pid, begun = strings.CutSuffix(string(text), "\n")
		return begun
	})
	await.True(t, "the program has ended", func() bool {
		_, err := os.Stat("/proc/" + pid)
		return errors.Is(err, os.ErrNotExist)
	})
}

// untilFree waits until no image is stalled.
func untilFree(b *linuxtest.Bench) {
	b.T.Helper()
	await.True(b.T, "the image is free", func() bool {
		all, err := b.Failing()
		return err == nil && len(all) == 0
	})
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
	file := filepath.Join(t.TempDir(), "pid")
	linuxtest.UseTool(t, "mkfs.ext4", "echo $$ > "+file+"; exec cat "+held)
	limit := time.Second // on a slow machine the limit passes before the program waits, and it can be killed
	await.True(t, "the program waits for the lock when it is given up", func() (waits bool) {
		if err := format(b, m, limit); !errors.Is(err, mounter.ErrStalled) {
			t.Fatalf("fillImage = %v, want ErrStalled", err)
		}
		limit *= 2
		await.True(t, "the program waits, or has ended", func() bool {
			text, _ := os.ReadFile(file)
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if waits = err == nil && linuxtest.WaitsIn(pid, "xfs_ilock", "xfs_file_buffered_read"); waits {
				return true
			}
			all, err := b.Failing()
			return err == nil && len(all) == 0
		})
		return waits
	})
	b.Host.(*linux.Host).Tools.Limit = linuxtest.Eternity
	all, err := b.Failing()
	if err != nil || all[m.Source].Kind != mounter.Stalled || !strings.Contains(all[m.Source].Message, "mkfs.ext4") {
		t.Errorf("the image is in the state %+v, %v, want Stalled by mkfs.ext4", all, err)
	}
	b.Refused(m, b.Path("staging"), mounter.ErrStalled)
	if err := b.RenewUUID(m); !errors.Is(err, mounter.ErrStalled) {
		t.Errorf("NewUUID = %v, want ErrStalled", err)
	}
	p.Release()
	untilFree(b)
	b.MustMount(m, b.Path("staging"))
	b.MustUnmount(b.Path("staging"))
}
