package linuxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// AsMounter makes a process of this test mount a disk and die: see mountAndDie.
const AsMounter = "CAUSEWAY_TEST_MOUNT"

// MountProcess has the mounts of such a process.
type MountProcess struct {
	Kubelet, State, Path string
	Mount                mounter.Mount
}

// mountAndDie mounts the device of the environment.
func mountAndDie() int {
	var p MountProcess
	err := json.Unmarshal([]byte(os.Getenv(AsMounter)), &p)
	if err == nil {
		var h mounter.Host
		if h, err = New(p.Kubelet, p.State); err == nil {
			err = h.Mount(context.Background(), p.Mount, p.Path)
		}
	}
	fmt.Println(err)
	return 3
}

// AsFreezer is set in the environment where this test binary is the program below: the bench's
// kubelet directory, and the images, a line for each.
const AsFreezer = "CAUSEWAY_TEST_FREEZER"

// freezer freezes images and never lets go.
func freezer() int {
	args := strings.Split(os.Getenv(AsFreezer), "\n")
	m, err := New(args[0], filepath.Join(filepath.Dir(args[0]), "frozen"))
	if err == nil {
		err = m.Freeze(context.Background(), "", args[1:], Eternity, func(context.Context) error {
			fmt.Println("frozen")
			if os.Getenv(crashpoint.Env) == "" {
				select {}
			}
			return nil
		})
	}
	fmt.Println(err)
	return 1
}

// BuildFreezer builds this test's program so that it knows crash points.
var BuildFreezer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "freezer")
	if err != nil {
		return "", err
	}
	freezerDir = dir
	bin := filepath.Join(dir, "freezer")
	cmd := exec.Command("go", "test", "-c", "-tags", "crashpoints", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as in an image
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c: %w: %s", err, out)
	}
	return bin, nil
})

// freezerDir holds the binary once it is built.
var freezerDir string
