package main

import (
	"os"
	"path/filepath"
	"regexp"
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

// withSnapshotController is the result of the component snapshot-controller for the arguments.
// test/cluster/manifests checks it.
func withSnapshotController(args []string) []string {
	args = slices.Clone(args)
	args[0] += ",snapshot-controller"
	return append(args, "--snapshot-controller-kube-api-qps=100", "--snapshot-controller-kube-api-burst=200")
}

func TestTheManifestsCommandLineIsRead(t *testing.T) {
	args := manifestArgs(t)
	for _, args := range [][]string{args, withSnapshotController(args)} {
		if err := command().Check(args); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// withAttacher returns the arguments of a chart with hostpath.csiDriver.attachRequired.
// TestTheAttachersCommandLine compares them with the chart's.
func withAttacher(args []string) []string {
	args = slices.Clone(args)
	args[0] += ",attacher"
	return append(args, "--attacher-timeout=60s", "--attacher-worker-threads=100", "--attacher-kube-api-qps=100",
		"--attacher-kube-api-burst=200")
}

// withoutCapacity returns the arguments of a chart without hostpath.csiDriver.storageCapacity.
func withoutCapacity(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.Contains(a, "capacity") })
}

// TestTheAttachersCommandLine reads the command line that the chart renders for attached disks.
func TestTheAttachersCommandLine(t *testing.T) {
	args := manifests.Args(t, filepath.Join("..", "..", "test", "cluster", "chart", "testdata", "attached.yaml"),
		"csi-sidecars")
	if err := command().Check(args); err != nil {
		t.Errorf("%q: %v", args, err)
	}
	want := withAttacher(withoutCapacity(manifestArgs(t)))
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(args)); !slices.Equal(got, want) {
		t.Errorf("the chart gives csi-sidecars\n%q, its roles are for\n%q", got, want)
	}
}

// runs runs a command line in this process, and returns the output.
func runs(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var files [2]*os.File
	for i := range files {
		file, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files[i] = file
	}
	out, complaint := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = files[0], files[1]
	code = command().Main(args)
	os.Stdout, os.Stderr = out, complaint
	var texts [2]string
	for i, file := range files {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	return texts[0], texts[1], code
}

// Names in place of the chart's values.
const (
	fullname  = "fullname-of-the-release"
	namespace = "namespace-of-the-release"
)

// rights returns the output of csi-sidecars rbac for a service account of the chart, as a template
// for each object.
func rights(t *testing.T, name string, args ...string) []string {
	t.Helper()
	line := append([]string{"rbac", "--name=" + name, "--namespace=" + namespace,
		"--service-account=" + name + "-controller"}, args...)
	text, complaint, code := runs(t, line...)
	if code != 0 {
		t.Fatalf("%q ends with %d: %s", line, code, complaint)
	}
	objects := strings.Split(strings.TrimSuffix(text, "\n"), "\n---\n")
	for i, o := range objects {
		o = named.ReplaceAllString(o, "$0\n  labels: {{- include \"causeway.labels\" . | nindent 4 }}")
		objects[i] = strings.NewReplacer(fullname, `{{ include "causeway.fullname" . }}`, namespace,
			`{{ include "causeway.namespace" . }}`).Replace(o)
	}
	return objects
}

// named is the name of an object, and where it is.
var named = regexp.MustCompile(`(?m)^metadata:\n  name: .*(\n  namespace: .*)?$`)

// choose returns a list of templates: of each of the objects as it is if a value is set, and as it is
// without. Both lists have the same objects in the same order.
func choose(t *testing.T, condition string, with, without []string) []string {
	t.Helper()
	if len(with) != len(without) {
		t.Fatalf("%s: %d objects with it, %d without", condition, len(with), len(without))
	}
	all := slices.Clone(with)
	for i, o := range without {
		if o != with[i] {
			all[i] = "{{- if " + condition + " }}\n" + with[i] + "\n{{- else }}\n" + o + "\n{{- end }}"
		}
	}
	return all
}

// template makes a template of a chart, for some values only.
func template(condition string, objects []string) string {
	return "{{- if " + condition + " }}\n# Made by make generate-rbac: what csi-sidecars rbac prints for the flags " +
		"of this controller.\n" + strings.Join(objects, "\n---\n") + "\n{{- end }}\n"
}

// TestTheChartsRights compares the chart's roles with the rights that the flags need, or writes
// them. test/cluster/chart compares the roles after Helm.
func TestTheChartsRights(t *testing.T) {
	args := manifestArgs(t)
	const noAttach = "--driver-attach=false"
	both := rights(t, fullname, append(slices.Clone(args), noAttach)...)
	more := slices.DeleteFunc(rights(t, fullname, append(withSnapshotController(args), noAttach)...),
		func(o string) bool { return slices.Contains(both, o) })
	for _, o := range more {
		if !strings.Contains(o, "-snapshot-controller\n") {
			t.Errorf("the snapshot controller's rights are also in\n%s", o)
		}
	}
	const capacity = `include "causeway.trait" (dict "root" . "name" "storageCapacity")`
	isAttachers := func(o string) bool { return strings.Contains(o, "-attacher\n") }
	attached := choose(t, capacity, rights(t, fullname, withAttacher(args)...),
		rights(t, fullname, withAttacher(withoutCapacity(args))...))
	all := choose(t, capacity, both, rights(t, fullname, append(withoutCapacity(args), noAttach)...))
	all = choose(t, `include "causeway.attached" .`, slices.DeleteFunc(slices.Clone(attached), isAttachers), all)
	attached = slices.DeleteFunc(attached, func(o string) bool { return !isAttachers(o) })
	if len(attached) == 0 {
		t.Error("the attacher has no rights")
	}
	smb := rights(t, fullname+"-smb", "--controllers=provisioner,resizer,snapshotter,health-monitor",
		"--leader-election",
		"--resizer-handle-volume-inuse-error=false", "--health-monitor-pod-events=false", "--driver-secrets", noAttach)
	for path, want := range map[string]string{
		"hostpath/rbac.yaml": template(".Values.hostpath.enabled", all),
		"hostpath/rbac-snapshot-controller.yaml": template("and .Values.hostpath.enabled "+
			".Values.snapshotController.enabled", more),
		"hostpath/rbac-attacher.yaml": template(`include "causeway.attached" .`, attached),
		"smb/rbac.yaml":               template(".Values.smb.enabled", smb),
	} {
		path = filepath.Join("..", "..", "..", "charts", "causeway", "templates", path)
		if os.Getenv("CAUSEWAY_GENERATE") != "" {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != want {
			t.Errorf("%s, %v, is not what csi-sidecars rbac prints: run make generate-rbac", path, err)
		}
	}
}
