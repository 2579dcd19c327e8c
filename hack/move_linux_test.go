package hack

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// cluster is a kubectl whose objects are files of a directory. The directory also has a log of the
// changes, and a file hook, which runs before each call. With FAIL each different call, in each
// state of the claim, fails once: before its effect, or after it with FAIL=late.
const cluster = `
cd "$STATE"
echo "$*" >>calls
call="$(grep -cxF -e "$*" calls) $* with $(cat claim.json 2>/dev/null | cksum)" fail=
if [ -n "${FAIL:-}" ] && ! grep -sqxF -e "$call" failed; then echo "$call" >>failed; fail=$FAIL; fi
if [ "$fail" = early ]; then exit 1; fi
if [ -e hook ]; then . ./hook; fi
change() { # FILE JQ-ARGUMENTS
	file=$1; shift
	jq "$@" "$file" >tmp && mv tmp "$file"
}
set -e
case "$*" in
"get pv "*" --ignore-not-found -o json") [ ! -e "$3.json" ] || cat "$3.json" ;;
"get pv "*" -o json") cat "$3.json" ;;
"-n apps get pvc web-data --ignore-not-found -o json") [ ! -e claim.json ] || cat claim.json ;;
"-n apps get pvc web-data -o json") cat claim.json ;;
"-n apps get pods -o json") cat pods.json ;;
"patch pv "*)
	echo "patch $3" >>log
	for patch; do :; done
	change "$3.json" --argjson patch "$patch" 'if ($patch | .metadata.resourceVersion // "1") != .metadata.resourceVersion
		then error("conflict") else . * $patch | del(.spec.claimRef[] | select(. == null)) end' ;;
"apply -f "*new-pv.json)
	echo apply pv >>log
	[ -e pvc-1-causeway.json ] || echo '{"metadata": {"uid": "new", "resourceVersion": "1"}}' >pvc-1-causeway.json
	change pvc-1-causeway.json --slurpfile new "$3" '. * $new[0]' ;;
"create -f "*new-claim.json)
	[ ! -e claim.json ]
	echo create claim >>log
	jq --arg uid "$$" '.metadata += {uid: $uid, resourceVersion: "1"}' "$3" >claim.json ;;
"delete --raw "*)
	case $3 in
	/api/v1/namespaces/apps/persistentvolumeclaims/web-data) file=claim.json ;;
	/api/v1/persistentvolumes/pvc-1) file=pvc-1.json ;;
	esac
	jq -e --slurpfile o "$5" '.metadata as $m | $o[0] | .apiVersion == "v1" and .kind == "DeleteOptions"
		and .preconditions == {uid: $m.uid, resourceVersion: $m.resourceVersion}' $file
	if [ $file = pvc-1.json ] || [ "$(jq -r .spec.volumeName claim.json)" = pvc-1 ]; then
		[ "$(jq -r .spec.persistentVolumeReclaimPolicy pvc-1.json)" = Retain ] || echo the data is lost >>log
	fi
	echo "delete $file" >>log
	rm $file
	if [ $file = claim.json ]; then change pvc-1.json '.status.phase = "Released"'; fi ;;
"-n apps wait --for=delete pvc/web-data --timeout=60s") [ ! -e claim.json ] ;;
"-n apps wait --for=delete pv/pvc-1 --timeout=60s") [ ! -e pvc-1.json ] ;;
"-n apps wait pvc web-data "*)
	[ ! -e stuck ]
	[ "$(jq -r .spec.volumeName claim.json)" = pvc-1-causeway ]
	uid=$(jq -r .metadata.uid claim.json)
	case $(jq -r '.spec.claimRef.uid // "none"' pvc-1-causeway.json) in none | "$uid") ;; *) exit 1 ;; esac
	change pvc-1-causeway.json --arg uid "$uid" '.spec.claimRef.uid = $uid' ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
[ -z "$fail" ]
`

// mover runs the script on a cluster.
type mover struct {
	*testing.T
	state, path string
}

func newMover(t *testing.T) *mover {
	t.Helper()
	namespace.Need(t, "jq")
	m := &mover{T: t, state: t.TempDir()}
	bin := t.TempDir()
	program(t, bin, "kubectl", cluster)
	m.path = bin + ":" + os.Getenv("PATH")
	m.write("pvc-1.json", `{"kind": "PersistentVolume", "metadata": {"name": "pvc-1",
		"uid": "v", "resourceVersion": "1"},
		"status": {"phase": "Bound"}, "spec": {
		"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Delete",
		"claimRef": {"namespace": "apps", "name": "web-data", "uid": "u"},
		"mountOptions": ["dir_mode=0770", "vers=3.0", "soft", "cache=loose", "guest", "hard", "credentials=/etc/x"],
		"csi": {"driver": "smb.csi.k8s.io", "volumeHandle": "nas/share#x#", "volumeAttributes": {"Source": "\\\\nas\\share/",
			"subdir": "${pvc.metadata.namespace}/${pv.metadata.name}/", "csi.storage.k8s.io/pvc/namespace": "apps",
			"csi.storage.k8s.io/pv/name": "pvc-1", "storage.kubernetes.io/csiProvisionerIdentity": "x"},
			"nodeStageSecretRef": {"name": "secret", "namespace": "smb"}}}}`)
	m.write("claim.json", `{"kind": "PersistentVolumeClaim", "metadata": {"name": "web-data", "namespace": "apps",
		"labels": {"a": "b"}, "uid": "u", "resourceVersion": "7"},
		"spec": {"accessModes": ["ReadWriteMany"], "volumeName": "pvc-1", "resources": {"requests": {"storage": "1Gi"}}}}`)
	m.write("pods.json", `{"items": [{"metadata": {"name": "other"}, "status": {"phase": "Running"}, "spec": {"volumes": [
		{"emptyDir": {}}]}}, {"metadata": {"name": "done"}, "status": {"phase": "Succeeded"}, "spec": {"volumes": [
		{"persistentVolumeClaim": {"claimName": "web-data"}}]}}, {"metadata": {"name": "none"}, "status": {}, "spec": {}}]}`)
	return m
}

func (m *mover) write(name, content string) {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.state, name), []byte(content), 0o644); err != nil {
		m.Fatal(err)
	}
}

// run runs the script, and returns its output and whether it succeeded.
func (m *mover) run(args ...string) (string, bool) { return m.runWith(nil, args...) }

// runWith runs the script with an environment.
func (m *mover) runWith(env []string, args ...string) (string, bool) {
	m.Helper()
	m.write("calls", "")
	cmd := exec.Command("./move-from-csi-driver-smb", append(args, "pvc-1", filepath.Join(m.state, "objects"))...)
	cmd.Env = append(append(os.Environ(), "PATH="+m.path, "STATE="+m.state), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// edit replaces text in a file.
func (m *mover) edit(name, old, replacement string) {
	m.Helper()
	content, err := os.ReadFile(filepath.Join(m.state, name))
	if err != nil || !strings.Contains(string(content), old) {
		m.Fatalf("%s has no %q: %v, %s", name, old, err, content)
	}
	m.write(name, strings.Replace(string(content), old, replacement, 1))
}

// moved fails unless the claim is bound to the new volume, and the old volume is gone.
func (m *mover) moved() {
	m.Helper()
	claim, volume := m.object("claim.json"), m.object("pvc-1-causeway.json")
	spec := volume["spec"].(map[string]any)
	if name := claim["spec"].(map[string]any)["volumeName"]; name != "pvc-1-causeway" {
		m.Errorf("the claim is bound to %v", name)
	}
	if got, want := spec["claimRef"].(map[string]any)["uid"], claim["metadata"].(map[string]any)["uid"]; got != want {
		m.Errorf("the volume is bound to the UID %v, not %v", got, want)
	}
	if _, err := os.Stat(filepath.Join(m.state, "pvc-1.json")); !os.IsNotExist(err) {
		m.Errorf("the old volume: %v", err)
	}
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
	t.Parallel()
	m := newMover(t)
	out, ok := m.run()
	if strings.Contains(out, "hard") || strings.Contains(out, "soft") {
		t.Errorf("options that outage replaces are reported: %s", out)
	}
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
	if got, want := m.changes(), "apply pv, patch pvc-1, delete claim.json, create claim"; got != want {
		t.Errorf("changes: %s, want %s", got, want)
	}
	os.Remove(filepath.Join(m.state, "stuck"))
	if out, ok := m.run("--apply"); !ok || !strings.Contains(out, "apps/web-data is bound to pvc-1-causeway") {
		t.Errorf("the repeated run: %s", out)
	}
	if got, want := m.changes(), "delete pvc-1.json"; got != want {
		t.Errorf("changes of the repeated run: %s, want %s", got, want)
	}
	m.write("pods.json", strings.Replace(usedBy, "POD", "web", 1))
	if out, ok := m.run("--apply"); !ok || m.changes() != "" {
		t.Errorf("a run after the move: %s", out)
	}
	m.moved()
	spec := m.object("pvc-1-causeway.json")["spec"].(map[string]any)
	secret := map[string]any{"name": "secret", "namespace": "smb"}
	if got, want := spec["csi"], (map[string]any{"driver": "smb.csi.causeway.dev", "volumeHandle": "pvc-1-causeway",
		"readOnly": false, "nodeStageSecretRef": secret,
		"volumeAttributes":     map[string]any{"source": "//nas/share", "subDir": "apps/pvc-1", "outage": "wait"},
		"nodePublishSecretRef": secret}); !reflect.DeepEqual(got, want) {
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
	if namespace := m.object("claim.json")["metadata"].(map[string]any)["namespace"]; namespace != "apps" {
		t.Errorf("the namespace of the claim is %v", namespace)
	}
}

// TestOtherFormsOfAVolume: csi-driver-smb also accepts these sources, and a secret of the publish
// alone.
func TestOtherFormsOfAVolume(t *testing.T) {
	t.Parallel()
	for old, replacement := range map[string]string{
		`"nodeStageSecretRef"`:        `"nodePublishSecretRef"`,
		`"Source": "\\\\nas\\share/"`: `"source": "//nas//share"`,
		`\\\\nas\\share/`:             `\\\\nas\\\\share\\`,
	} {
		m := newMover(t)
		m.edit("pvc-1.json", old, replacement)
		if out, ok := m.run(); !ok {
			t.Fatal(out)
		}
		secret := map[string]any{"name": "secret", "namespace": "smb"}
		csi := m.object("objects/new-pv.json")["spec"].(map[string]any)["csi"].(map[string]any)
		if got := csi["volumeAttributes"].(map[string]any)["source"]; got != "//nas/share" {
			t.Errorf("%s: the source is %v", replacement, got)
		}
		if !reflect.DeepEqual(csi["nodeStageSecretRef"], secret) || !reflect.DeepEqual(csi["nodePublishSecretRef"], secret) {
			t.Errorf("%s: the secret is lost: %v", replacement, csi)
		}
	}
}

// usedBy is a list of a pod that uses the claim.
const usedBy = `{"items": [{"metadata": {"name": "POD"}, "status": {"phase": "Running"}, "spec": {"volumes": [
	{"name": "x", "persistentVolumeClaim": {"claimName": "web-data"}}]}}]}`

// TestAnInterruptedMoveLosesNothing: each call of kubectl fails once, before or after its effect,
// and the run is repeated. Each failure ends its run, no data is lost, and the last run completes
// the move.
func TestAnInterruptedMoveLosesNothing(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"early", "late"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			m := newMover(t)
			failures, changes, ok := 0, "", false
			for !ok && failures < 50 {
				out, completed := m.runWith([]string{"FAIL=" + when}, "--apply")
				if ok = completed; !ok {
					failures++
				}
				failed, err := os.ReadFile(filepath.Join(m.state, "failed"))
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(string(failed), "\n"); n != failures {
					t.Fatalf("%d failures ended %d runs: %s\n%s", n, failures, failed, out)
				}
				changes += m.changes() + "\n"
			}
			if failures < 17 || strings.Contains(changes, "lost") || strings.Count(changes, "delete claim.json") != 1 {
				t.Errorf("%d failures, changes: %s", failures, changes)
			}
			m.moved()
		})
	}
}

// TestAReleasedVolumeIsBoundAgain: the new volume has the UID of a claim that was deleted.
func TestAReleasedVolumeIsBoundAgain(t *testing.T) {
	t.Parallel()
	m := newMover(t)
	if out, ok := m.run("--apply"); !ok {
		t.Fatal(out)
	}
	os.Remove(filepath.Join(m.state, "claim.json"))
	m.changes()
	m.edit("pvc-1-causeway.json", `"uid": "new"`, `"uid": "other"`)
	if out, ok := m.run("--apply"); !ok {
		t.Error(out)
	}
	if got, want := m.changes(), "apply pv, create claim, patch pvc-1-causeway"; got != want {
		t.Errorf("changes: %s, want %s", got, want)
	}
	m.moved()
	for _, tc := range []struct{ old, replacement string }{
		{"smb.csi.causeway.dev", "x"},
		{`"name": "web-data"`, `"name": "other"`},
		{`"namespace": "apps"`, `"namespace": "other"`},
	} {
		m.edit("pvc-1-causeway.json", tc.old, tc.replacement)
		m.edit("claim.json", `"uid": "`, `"uid": "other`)
		if out, ok := m.run("--apply"); ok || m.changes() != "" {
			t.Errorf("the volume of another claim or driver: %s", out)
		}
		m.edit("claim.json", `"uid": "other`, `"uid": "`)
		m.edit("pvc-1-causeway.json", tc.replacement, tc.old)
	}
}

// TestOptionsOfTheMove: the script keeps exactly the options that pkg/mounter permits, but for soft
// and hard, for which a volume has the attribute outage.
func TestOptionsOfTheMove(t *testing.T) {
	t.Parallel()
	m := newMover(t)
	err := mounter.CheckOptions(mounter.Share, "", []string{"unknown"})
	if err == nil {
		t.Fatal("unknown options are permitted")
	}
	_, list, _ := strings.Cut(err.Error(), "with a valid value: ")
	names := strings.Split(list, ", ")
	if len(names) < 20 {
		t.Fatalf("the options are %v, of %v", names, err)
	}
	values := []string{"", "0", "00", "7", "077", "0770", "07770", "077777", "0790", "770", "1000", "01000", "65536",
		"99999", "99999999", "100000000", "999999999", "3999999999", "4000000000", "-1", "1s", "x", "nobody", "none", "strict",
		"loose", "1.0", "2.1", "3", "3.0", "3.02", "3x02", "3.1.1", "3.1.1.1", "krb5", "krb5i", "ntlm", "ntlmssp", "a:b", "a:b:c",
		"a:b:c:d:e", "a:b:c:d:e:f", "a:b:c,d-e.f_", `"a:b:c"`, "a:b:c d", "7\n", "7 ", "7,x", "x\n7"}
	options := []string{"unknown", "x\nguest", "guest\n", "", "soft", "hard", "credentials=x", "ip=1"}
	want := []string{}
	for _, name := range names {
		options = append(options, name, name+"\n", "no"+name, strings.TrimSuffix(name, "="))
		before := len(want)
		for _, value := range values {
			options = append(options, strings.TrimSuffix(name, "=")+"="+value)
		}
		for _, o := range options[len(options)-len(values)-4:] {
			if o != "soft" && o != "hard" && mounter.CheckOptions(mounter.Share, "", []string{o}) == nil {
				want = append(want, o)
			}
		}
		if len(want) == before && name != "soft" && name != "hard" {
			t.Errorf("the test has no valid value of %s", name)
		}
	}
	pv := m.object("pvc-1.json")
	pv["spec"].(map[string]any)["mountOptions"] = options
	content, err := json.Marshal(pv)
	if err != nil {
		t.Fatal(err)
	}
	m.write("pvc-1.json", string(content))
	out, ok := m.run()
	if !ok {
		t.Fatal(out)
	}
	var got []string
	for _, o := range m.object("objects/new-pv.json")["spec"].(map[string]any)["mountOptions"].([]any) {
		got = append(got, o.(string))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the options are %q,\nwant %q", got, want)
	}
	report := ""
	for _, o := range options {
		if o != "soft" && o != "hard" && !slices.Contains(want, o) {
			report += "left out: mount option " + o + "\n"
		}
	}
	if !strings.Contains(out, report) {
		t.Errorf("the report is %q, want %q", out, report)
	}
}

// TestOutageOfTheMove: the last of soft and hard decides, as in the kernel.
func TestOutageOfTheMove(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]any{`"hard"`: "wait", `"hard", "soft"`: nil, `"soft", "hard"`: "wait",
		`"soft"`: nil, `"guest"`: nil} {
		m := newMover(t)
		m.edit("pvc-1.json", `"dir_mode=0770", "vers=3.0", "soft", "cache=loose", "guest", "hard"`, options)
		if out, ok := m.run(); !ok {
			t.Error(out)
		}
		csi := m.object("objects/new-pv.json")["spec"].(map[string]any)["csi"].(map[string]any)
		if got := csi["volumeAttributes"].(map[string]any)["outage"]; got != want {
			t.Errorf("%s: outage %v, want %v", options, got, want)
		}
	}
}

func TestAMoveIsRefused(t *testing.T) {
	t.Parallel()
	m := newMover(t)
	m.edit("pods.json", `"emptyDir": {}`, `"name": "data", "ephemeral": {}`)
	if out, ok := m.run(); !ok {
		t.Fatal(out)
	}
	for name, tc := range map[string]struct {
		file, old, replacement, want string
		unplanned                    bool
	}{
		"another driver":      {"pvc-1.json", "smb.csi.k8s.io", "x", "invalid driver x: must be", false},
		"the same, at first":  {"pvc-1.json", "smb.csi.k8s.io", "x", "invalid driver x: must be", true},
		"released":            {"pvc-1.json", "Bound", "Released", "has the phase Released: must be Bound", false},
		"available":           {"pvc-1.json", "Bound", "Available", "has the phase Available: must be Bound", true},
		"being deleted":       {"pvc-1.json", `"uid": "v"`, `"uid": "v", "deletionTimestamp": "x"`, "being deleted", false},
		"another claim":       {"claim.json", `"u"`, `"w"`, "another claim than web-data", false},
		"the same, at first ": {"claim.json", `"u"`, `"w"`, "another claim than web-data", true},
		"another volume":      {"claim.json", "pvc-1", "pvc-2", "bound to pvc-2: must be pvc-1", false},
		"no volume":           {"claim.json", `"volumeName": "pvc-1", `, "", "bound to no volume: must be", false},
		"a pod":               {"pods.json", "Succeeded", "Running", "use claim web-data: done: stop them", false},
		"a pod of the volume": {"pods.json", `"name": "other"`, `"name": "web"`, "use claim web-data: web", false},
	} {
		content, err := os.ReadFile(filepath.Join(m.state, tc.file))
		if err != nil {
			t.Fatal(err)
		}
		m.edit(tc.file, tc.old, tc.replacement)
		if tc.unplanned {
			os.RemoveAll(filepath.Join(m.state, "objects"))
		}
		if out, ok := m.run("--apply"); ok || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %q, want %q", name, out, tc.want)
		}
		if changes := m.changes(); changes != "" {
			t.Errorf("%s: changes: %s", name, changes)
		}
		m.write(tc.file, string(content))
		if tc.unplanned {
			m.run()
		}
	}
}

// TestObjectsThatChangeDuringAMove: the script deletes no object that has changed since the plan,
// or since the last check.
func TestObjectsThatChangeDuringAMove(t *testing.T) {
	t.Parallel()
	const edit = `jq '%s' %s >tmp && mv tmp %[2]s`
	otherClaim := fmt.Sprintf(edit, `.metadata.uid = "w" | .spec.volumeName = "pvc-2"`, "claim.json")
	newClaim := fmt.Sprintf(edit, `.metadata.uid = "w"`, "claim.json") + ";" +
		fmt.Sprintf(edit, `.spec.claimRef.uid = "w"`, "pvc-1.json")
	newVolume := fmt.Sprintf(edit, `.metadata.uid = "w"`, "pvc-1.json")
	policy := fmt.Sprintf(edit, `.spec.persistentVolumeReclaimPolicy = "Delete"`, "pvc-1.json")
	for name, tc := range map[string]struct{ call, hook, want, changes string }{
		"a new claim and its volume": {"-n apps get pvc web-data --ignore*", newClaim, "was created again", ""},
		"a new volume":               {"get pv pvc-1 --ignore*", newVolume, "the volume was created again", ""},
		"no volume":                  {"get pv pvc-1 --ignore*", "rm -f pvc-1.json", "not found, but", ""},
		"another claim": {"apply*", otherClaim, "bound to pvc-2: must be pvc-1",
			"apply pv, patch pvc-1"},
		"another claim at the last moment": {"delete*", otherClaim, "", "apply pv, patch pvc-1"},
		"the policy before the claim": {"-n apps get pvc web-data --ignore*", policy, "policy Delete: must be Retain",
			"apply pv, patch pvc-1"},
		"the policy before the volume": {"-n apps wait pvc*", policy, `invalid reclaim policy Delete: must be Retain`,
			"apply pv, patch pvc-1, delete claim.json, create claim"},
		"a new volume before its deletion": {"-n apps wait pvc*", newVolume, "created again: it is not deleted",
			"apply pv, patch pvc-1, delete claim.json, create claim"},
		"a claim of others before ours": {"create*", "echo '{}' >claim.json", "",
			"apply pv, patch pvc-1, delete claim.json"},
	} {
		m := newMover(t)
		call := strings.ReplaceAll(tc.call, " ", `\ `)
		m.write("hook", `case "$*" in `+call+`) `+tc.hook+` ;; esac`)
		if out, ok := m.run("--apply"); ok || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %q, want %q", name, out, tc.want)
		}
		if changes := m.changes(); changes != tc.changes {
			t.Errorf("%s: changes: %s, want %s", name, changes, tc.changes)
		}
	}
}
