package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCRDsAreThePinnedModules: hack/crds copies them, and is to be run when the module is bumped.
func TestCRDsAreThePinnedModules(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := crds(t, "crds")
	theirs := crds(t, filepath.Join(strings.TrimSpace(string(dir)), "config", "crd"))
	delete(theirs, "kustomization.yaml") // lists the others
	if len(theirs) != 6 {
		t.Errorf("the module has %d CRDs, want 6: what are the others for?", len(theirs))
	}
	for name, text := range theirs {
		if !bytes.Equal(ours[name], text) {
			t.Errorf("crds/%s isn't the module's: run hack/crds", name)
		}
	}
	for name := range ours {
		if theirs[name] == nil {
			t.Errorf("crds/%s isn't in the module: run hack/crds", name)
		}
	}
}

// crds returns the YAML files in a directory.
func crds(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		if files[filepath.Base(path)], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return files
}
