package driver

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/quietlog"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/pkg/mounter/mountertest"
)

func TestMain(m *testing.M) {
	quietlog.Discard()
	helper.Main(host.HelperTasks(), hostpath.HelperTasks())
	newFakeWindows = func(dir, state string) (mounter.Host, error) { return mountertest.NewFakeWindows(dir, state) }
	if err := namespace.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "tests with real mounts are skipped:", err)
	} else {
		realMounter = func(dir string) (mounter.Host, error) { return host.New(dir, dir+".frozen") }
		bindMount = func(from, at string) error { return unix.Mount(from, at, "", unix.MS_BIND, "") }
	}
	if users, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		inUserNamespace = !slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"})
	}
	os.Exit(m.Run())
}
