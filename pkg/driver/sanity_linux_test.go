package driver

import (
	"fmt"
	"os"
	"testing"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

func TestMain(m *testing.M) {
	if err := namespace.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "tests with real mounts are skipped:", err)
	} else {
		realMounter = mounter.New
	}
	os.Exit(m.Run())
}
