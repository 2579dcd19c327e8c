package filesystem_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/filesystem"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
)

// TestACheckThatDoesNotCompleteSaysNothingOfTheFilesystem: e2fsck that is killed or has no memory
// has found no error. e2fsck(8) has the exit codes.
func TestACheckThatDoesNotCompleteSaysNothingOfTheFilesystem(t *testing.T) {
	b := linuxtest.NewLoopBench(t)
	m := b.Image("image", "ext4")
	linuxtest.Mkdir(t, b.Path("staging"))
	for script, want := range map[string]error{
		"kill -9 $$":                                          mounter.ErrCheck,
		"echo Memory allocation failed; exit 8":               mounter.ErrCheck,
		"echo Cannot allocate memory while checking; exit 12": mounter.ErrCheck,
		"exit 32": mounter.ErrCheck,
		"seq 1000; echo Memory allocation failed; exit 8": mounter.ErrCheck,
		`echo "$2: broken"; exit 4`:                       mounter.ErrFormat,
		"echo Bad magic number in super-block; exit 8":    mounter.ErrFormat,
		"exit 5": mounter.ErrFormat,
	} {
		t.Run(script, func(t *testing.T) {
			linuxtest.UseTool(t, "e2fsck", script)
			err := b.Mount(context.Background(), m, b.Path("staging"))
			if !errors.Is(err, want) || errors.Is(want, mounter.ErrCheck) && errors.Is(err, mounter.ErrFormat) {
				t.Errorf("Mount = %v, want %v", err, want)
			}
			if err != nil && strings.Contains(err.Error(), "/proc/self/fd") {
				t.Errorf("the message does not name the image: %v", err)
			}
		})
	}
	for _, script := range []string{"exit 0", "exit 1", "exit 3"} {
		linuxtest.UseTool(t, "e2fsck", script)
		b.MustMount(m, b.Path("staging"))
		b.MustUnmount(b.Path("staging"))
	}
}

// TestADeviceThatDisappearsDuringAFormat: mkfs.btrfs fails if a loop device of another image is
// detached while it runs.
func TestADeviceThatDisappearsDuringAFormat(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	linuxtest.UseTool(t, "mkfs.btrfs", "if [ -e "+seen+" ]; then exit 0; fi; : >"+seen+
		"; echo 'ERROR: cannot check mount status of x: No such device or address'; exit 1")
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	programs := filesystem.New(tool.NewRunner())
	if err := programs.Format(context.Background(), image, "btrfs"); err != nil {
		t.Error(err)
	}
	linuxtest.UseTool(t, "mkfs.btrfs", "echo broken; exit 1")
	if err := programs.Format(context.Background(), image, "btrfs"); err == nil {
		t.Error("a failure is no error")
	}
}
