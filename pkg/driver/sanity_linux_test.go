package driver

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

func TestMain(m *testing.M) {
	if err := namespace.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "tests with real mounts are skipped:", err)
	} else {
		realMounter = mounter.New
		bindMount = func(from, at string) error { return unix.Mount(from, at, "", unix.MS_BIND, "") }
	}
	os.Exit(m.Run())
}
