package linuxtest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// LoopOf returns the path of the device of an image.
func LoopOf(t *testing.T, m mounter.Mount) string {
	t.Helper()
	out, err := exec.Command("losetup", "-j", m.Source, "-O", "NAME", "-n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
