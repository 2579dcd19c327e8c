package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/manifests"
)

// manifestArgs returns the arguments of csi-sidecars in deploy/linux.
func manifestArgs(t *testing.T) []string {
	t.Helper()
	return manifests.Args(t, "controller.yaml", "csi-sidecars")
}

// withSnapshotController is what the component snapshot-controller makes of the arguments. test/cluster/manifests holds it to that.
func withSnapshotController(args []string) []string {
	args = slices.Clone(args)
	args[0] += ",snapshot-controller"
	return args
}

func TestTheManifestsCommandLineIsRead(t *testing.T) {
	args := manifestArgs(t)
	for _, args := range [][]string{args, withSnapshotController(args)} {
		if err := command().Check(args); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// rights is what csi-sidecars rbac prints for the manifests' service account, one document for each object.
func rights(t *testing.T, args []string) []string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdout := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = stdout }()
	line := append([]string{"rbac", "--name=causeway", "--namespace=causeway", "--service-account=causeway-controller", "--driver-attach=false"}, args...)
	if code := command().Main(line); code != 0 {
		t.Fatalf("%q ends with %d", line, code)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "---\n")
}

// rbacIntro is what the files of rights begin with.
const rbacIntro = `# Made by make generate-rbac; a test holds it to what csi-sidecars rbac prints for the flags in controller.yaml, with --name=causeway,
# --namespace=causeway, --service-account=causeway-controller and --driver-attach=false.
`

// TestTheManifestsRights compares the manifests' roles with what the flags need, or writes them.
func TestTheManifestsRights(t *testing.T) {
	args := manifestArgs(t)
	all := rights(t, args)
	more := slices.DeleteFunc(rights(t, withSnapshotController(args)), func(o string) bool { return slices.Contains(all, o) })
	for _, o := range more {
		if !strings.Contains(o, "\n  name: causeway-snapshot-controller\n") {
			t.Errorf("the snapshot controller's rights are also in\n%s", o)
		}
	}
	for path, objects := range map[string][]string{"rbac.yaml": all, "snapshot-controller/rbac.yaml": more} {
		path = filepath.Join(manifests.Linux(), path)
		want := []byte(rbacIntro + strings.Join(objects, "---\n"))
		if os.Getenv("CAUSEWAY_GENERATE") != "" {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s, %v, isn't what csi-sidecars rbac prints: run make generate-rbac", path, err)
		}
	}
}
