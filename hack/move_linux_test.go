package hack

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// cluster is a kubectl whose objects are files of a directory, which also has a log of the changes.
const cluster = `
cd "$STATE"
case "$*" in
"get pv pvc-1 -o json") cat pvc-1.json ;;
"get pv pvc-1") [ -e pvc-1.json ] ;;
*"get pvc data -o json") cat claim.json ;;
*"get pods -o json") cat pods.json ;;
*"jsonpath={.spec.persistentVolumeReclaimPolicy}") jq -r .spec.persistentVolumeReclaimPolicy pvc-1.json ;;
*"jsonpath={.spec.volumeName} --ignore-not-found") [ ! -e claim.json ] || jq -r .spec.volumeName claim.json ;;
"patch pv pvc-1 -p "*)
	echo patch >>log
	jq --argjson patch "$5" '. * $patch' pvc-1.json >tmp && mv tmp pvc-1.json ;;
"apply -f "*new-pv.json) echo apply pv >>log; cp "$3" pvc-1-causeway.json ;;
"apply -f "*new-claim.json) echo apply claim >>log; cp "$3" claim.json ;;
*"delete pvc data --ignore-not-found")
	[ "$(jq -r .spec.persistentVolumeReclaimPolicy pvc-1.json)" = Retain ] || echo "the data is lost" >>log
	echo delete claim >>log; rm claim.json ;;
*"wait pvc data"*) echo wait >>log; [ ! -e stuck ] ;;
"delete pv pvc-1 --ignore-not-found") echo delete pv >>log; rm -f pvc-1.json ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
`

// mover runs the script on a cluster.
type mover struct {
	*testing.T
	state, path string
}

func newMover(t *testing.T) *mover {
	t.Helper()
	if _, err := exec.LookPath("jq"); err != nil {
		namespace.Skip(t, err)
	}
	m := &mover{T: t, state: t.TempDir()}
	bin := t.TempDir()
	program(t, bin, "kubectl", cluster)
	m.path = bin + ":" + os.Getenv("PATH")
	m.write("pvc-1.json", `{"kind": "PersistentVolume", "metadata": {"name": "pvc-1"}, "status": {"phase": "Bound"}, "spec": {
		"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Delete",
		"claimRef": {"namespace": "apps", "name": "data", "uid": "u"},
		"mountOptions": ["dir_mode=0770", "vers=3.0", "cache=loose", "guest", "credentials=/etc/x"],
		"csi": {"driver": "smb.csi.k8s.io", "volumeHandle": "nas/share#x#", "volumeAttributes": {"Source": "\\\\nas\\share/",
			"subdir": "${pvc.metadata.namespace}/${pv.metadata.name}/", "csi.storage.k8s.io/pvc/namespace": "apps",
			"csi.storage.k8s.io/pv/name": "pvc-1", "storage.kubernetes.io/csiProvisionerIdentity": "x"},
			"nodeStageSecretRef": {"name": "secret", "namespace": "smb"}}}}`)
	m.write("claim.json", `{"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "apps", "labels": {"a": "b"}},
		"spec": {"accessModes": ["ReadWriteMany"], "volumeName": "pvc-1", "resources": {"requests": {"storage": "1Gi"}}}}`)
	m.write("pods.json", `{"items": [{"metadata": {"name": "other"}, "status": {"phase": "Running"}, "spec": {"volumes": [
		{"emptyDir": {}}]}}, {"metadata": {"name": "done"}, "status": {"phase": "Succeeded"}, "spec": {"volumes": [
		{"persistentVolumeClaim": {"claimName": "data"}}]}}, {"metadata": {"name": "none"}, "status": {}, "spec": {}}]}`)
	return m
}

func (m *mover) write(name, content string) {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.state, name), []byte(content), 0o644); err != nil {
		m.Fatal(err)
	}
}

// run runs the script, and returns its output and whether it succeeded.
func (m *mover) run(args ...string) (string, bool) {
	m.Helper()
	cmd := exec.Command("./move-from-csi-driver-smb", append(args, "pvc-1", filepath.Join(m.state, "objects"))...)
	cmd.Env = append(os.Environ(), "PATH="+m.path, "STATE="+m.state)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// changes returns the changes since the last call.
func (m *mover) changes() string {
	m.Helper()
	log, err := os.ReadFile(filepath.Join(m.state, "log"))
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	os.Remove(filepath.Join(m.state, "log"))
	return strings.ReplaceAll(strings.TrimSpace(string(log)), "\n", ", ")
}

// object reads an object.
func (m *mover) object(name string) (o map[string]any) {
	m.Helper()
	content, err := os.ReadFile(filepath.Join(m.state, name))
	if err == nil {
		err = json.Unmarshal(content, &o)
	}
	if err != nil {
		m.Fatal(err)
	}
	return o
}

func TestAVolumeMovesFromCSIDriverSMB(t *testing.T) {
	m := newMover(t)
	out, ok := m.run()
	for _, want := range []string{"directory: //nas/share/apps/pvc-1\n", "left out: mount option cache=loose\n",
		"left out: mount option credentials=/etc/x\n"} {
		if !ok || !strings.Contains(out, want) {
			t.Errorf("the plan is %q, want %q", out, want)
		}
	}
	if changes := m.changes(); changes != "" {
		t.Errorf("changes without --apply: %s", changes)
	}
	m.write("stuck", "")
	if out, ok := m.run("--apply"); ok {
		t.Errorf("a claim that is not bound: %s", out)
	}
	if got, want := m.changes(), "apply pv, patch, delete claim, apply claim, wait"; got != want {
		t.Errorf("changes: %s, want %s", got, want)
	}
	os.Remove(filepath.Join(m.state, "stuck"))
	if out, ok := m.run("--apply"); !ok || !strings.Contains(out, "apps/data is bound to pvc-1-causeway") {
		t.Errorf("the repeated run: %s", out)
	}
	if got, want := m.changes(), "apply pv, patch, wait, delete pv"; got != want {
		t.Errorf("changes of the repeated run: %s, want %s", got, want)
	}
	spec := m.object("pvc-1-causeway.json")["spec"].(map[string]any)
	secret := map[string]any{"name": "secret", "namespace": "smb"}
	if got, want := spec["csi"], (map[string]any{"driver": "smb.csi.causeway.dev", "volumeHandle": "pvc-1-causeway",
		"readOnly": false, "volumeAttributes": map[string]any{"source": "//nas/share", "subDir": "apps/pvc-1"},
		"nodeStageSecretRef": secret, "nodePublishSecretRef": secret}); !reflect.DeepEqual(got, want) {
		t.Errorf("csi = %v, want %v", got, want)
	}
	if got := spec["persistentVolumeReclaimPolicy"]; got != "Retain" {
		t.Errorf("the reclaim policy is %v", got)
	}
	var options []string
	for _, o := range spec["mountOptions"].([]any) {
		options = append(options, o.(string))
	}
	if err := mounter.CheckOptions(mounter.Share, "", options); err != nil || len(options) != 3 {
		t.Errorf("mount options %v: %v", options, err)
	}
	claim := m.object("claim.json")
	if name := claim["spec"].(map[string]any)["volumeName"]; name != "pvc-1-causeway" ||
		claim["metadata"].(map[string]any)["namespace"] != "apps" {
		t.Errorf("the claim is %v", claim)
	}
}

// TestOptionsOfTheMove: the script knows all options of a share.
func TestOptionsOfTheMove(t *testing.T) {
	m := newMover(t)
	err := mounter.CheckOptions(mounter.Share, "", []string{"unknown"})
	if err == nil {
		t.Fatal("unknown options are permitted")
	}
	_, list, _ := strings.Cut(err.Error(), "with a valid value: ")
	values := map[string]string{"file_mode=": "0770", "dir_mode=": "0770", "rsize=": "65536", "wsize=": "65536",
		"cache=": "strict", "vers=": "3.1.1", "sec=": "krb5", "context=": "a:b:c"}
	var options []string
	for _, name := range strings.Split(list, ", ") {
		if value := values[name]; value != "" {
			name += value
		} else if strings.HasSuffix(name, "=") {
			name += "7"
		}
		options = append(options, name)
	}
	if len(options) < 20 {
		t.Fatalf("the options are %v, of %v", options, err)
	}
	pv := m.object("pvc-1.json")
	pv["spec"].(map[string]any)["mountOptions"] = options
	content, err := json.Marshal(pv)
	if err != nil {
		t.Fatal(err)
	}
	m.write("pvc-1.json", string(content))
	if out, ok := m.run(); !ok || strings.Contains(out, "left out") {
		t.Error(out)
	}
}

func TestAMoveIsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ file, old, new, want string }{
		"another driver": {"pvc-1.json", "smb.csi.k8s.io", "x", "its driver is x"},
		"not bound":      {"pvc-1.json", "Bound", "Released", "not bound"},
		"a pod uses it":  {"pods.json", "Succeeded", "Running", "pods use claim data: done"},
		"being deleted":  {"pvc-1.json", `"metadata": {`, `"metadata": {"deletionTimestamp": "now", `, "being deleted"},
	} {
		m := newMover(t)
		content, err := os.ReadFile(filepath.Join(m.state, tc.file))
		if err != nil {
			t.Fatal(err)
		}
		m.write(tc.file, strings.Replace(string(content), tc.old, tc.new, 1))
		if out, ok := m.run("--apply"); ok || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %q, want %q", name, out, tc.want)
		}
		if changes := m.changes(); changes != "" {
			t.Errorf("%s: changes: %s", name, changes)
		}
	}
}
