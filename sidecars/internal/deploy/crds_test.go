package deploy

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// kustomization is the file with the inputs of kubectl apply -k.
const kustomization = "kustomization.yaml"

// resources returns the files that the kustomization in dir lists.
func resources(t *testing.T, dir ...string) []string {
	t.Helper()
	var k struct{ Resources []string }
	if err := yaml.Unmarshal([]byte(read(t, append(dir, kustomization)...)), &k); err != nil {
		t.Fatal(err)
	}
	return k.Resources
}

// TestCRDsAreThePinnedModules: hack/crds copies them, and is to be run when the module is bumped.
func TestCRDsAreThePinnedModules(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/kubernetes-csi/external-snapshotter/client/v8").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := crds(t, filepath.Join(root, "charts", "causeway", "crds"))
	theirs := crds(t, filepath.Join(strings.TrimSpace(string(dir)), "config", "crd"))
	delete(theirs, kustomization) // lists the others, as ours does
	if listed := resources(t, "charts", "causeway", "crds"); !slices.Equal(listed, slices.Sorted(maps.Keys(theirs))) {
		t.Errorf("charts/causeway/crds/%s has %q", kustomization, listed)
	}
	delete(ours, kustomization)
	if len(theirs) != 6 {
		t.Errorf("the module has %d CRDs, want 6: what are the others for?", len(theirs))
	}
	for name, text := range theirs {
		if !bytes.Equal(ours[name], text) {
			t.Errorf("charts/causeway/crds/%s is not the module's: run hack/crds", name)
		}
	}
	for name := range ours {
		if theirs[name] == nil {
			t.Errorf("charts/causeway/crds/%s is not in the module: run hack/crds", name)
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
