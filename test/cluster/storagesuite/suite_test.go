package storagesuite

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

// loader remembers the archives that it was given.
type loader struct {
	provider.Provider
	loaded []string
}

func (l *loader) Load(_ context.Context, tars ...string) error {
	for _, t := range tars {
		if _, err := os.Stat(t); err != nil {
			return err
		}
		l.loaded = append(l.loaded, filepath.Base(t))
	}
	return nil
}

func TestTheImagesAreLoadedAndNothingElse(t *testing.T) {
	for _, program := range []string{"busybox", "/bin/dd", "/bin/dash", "ldd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the images are made of Debian's programs: %v", err)
		}
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, Agnhost), []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	var l loader
	if err := Load(t.Context(), &l, bin); err != nil {
		t.Fatal(err)
	}
	slices.Sort(l.loaded)
	if want := []string{"agnhost.tar", "glibc-dns-testing.tar", "nginx.tar"}; !slices.Equal(l.loaded, want) {
		t.Errorf("loaded %q, want %q", l.loaded, want)
	}
}

func TestAnExistingClusterIsRefused(t *testing.T) {
	err := Load(t.Context(), &existing.Cluster{}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), `must be "local" or "kind"`) {
		t.Errorf("got %v, want a refusal", err)
	}
}
