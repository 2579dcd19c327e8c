package story

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// withVolume is a cluster with a claim, its volume on node-2, a pod, a snapshot and its content.
func withVolume() *fake.Cluster {
	c := fake.Healthy()
	class := "causeway-hostpath"
	c.Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c1"},
		Spec:   corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: "pv-1"},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: "c1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: fake.Driver, VolumeHandle: "h1"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: fake.Driver + "/node", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-2"}}}}}}}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Spec: corev1.PodSpec{NodeName: "node-2",
			Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c1"}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	c.Event("Pod", "default", "app", "FailedMount", "it took\x1b[2J long")
	c.Custom = []*unstructured.Unstructured{
		{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": map[string]any{"namespace": "default", "name": "s1"},
			"spec": map[string]any{"source": map[string]any{"persistentVolumeClaimName": "c1"}}, "status": map[string]any{"readyToUse": true}}},
		{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": map[string]any{"name": "content-1"},
			"spec": map[string]any{"source": map[string]any{"volumeHandle": "h1"}}}}}
	c.Pods.OnExec = func(pod, _ string, command []string, out io.Writer) error {
		answer := `{"driver":"x","volume":{"id":"h1","size":1048576},"snapshots":[],"health":[{"status":"DEGRADED","reason":"CopyStalled","message":"at a file"}]}`
		if command[1] == "show" {
			answer = `{"node":"node-2","path":"/var/lib/causeway/volumes/h1","record":{"version":1},"mounts":["36 1 0:1 / /x/pv-1/mount"]}`
			if pod != "causeway-node-2" || command[2] != "h1" || !strings.HasPrefix(command[3], "pv-1,") || !strings.Contains(strings.Join(command, " "), "--node-id=node-2 ") {
				return errors.New("wrong command: " + pod + strings.Join(command, " "))
			}
		}
		_, err := io.WriteString(out, answer)
		return err
	}
	return c
}

func TestTheWholeStory(t *testing.T) {
	for _, name := range []string{"c1", "pvc/c1", "pv/pv-1"} {
		s, err := Of(context.Background(), withVolume().Clients().Client, cluster.Selection{}, "default", name, "/driver")
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := s.Text(&text); err != nil || len(s.NotRead) > 0 {
			t.Fatal(err, s.NotRead)
		}
		for _, want := range []string{"default/c1", "pv-1", "node-2", "/var/lib/causeway/volumes/h1", "CopyStalled: at a file", "1048576 bytes",
			"VolumeSnapshot ", "content-1", "Running on node-2", `"it took\x1b[2J long"`, "/x/pv-1/mount", `{"version":1}`, "causeway_trash_entries"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, text.String())
			}
		}
		if strings.Contains(text.String(), "\x1b") {
			t.Errorf("a control character reaches the terminal: %q", text.String())
		}
	}
}

func TestAPartThatCannotBeReadIsNamed(t *testing.T) {
	c := withVolume()
	c.Pods.OnExec = nil
	c.Refuse["volumeattachments"] = errors.New("forbidden")
	s, err := Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "c1", "/driver")
	if err != nil || len(s.NotRead) != 3 || s.Node != "node-2" || s.Files != nil || s.Record != nil {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "c9", "/driver")
	if err == nil || !strings.Contains(err.Error(), `"c9" not found in namespace "default": give the namespace of the claim with -n`) {
		t.Errorf("of a claim that does not exist: %v", err)
	}
	c = withVolume()
	fake.Get[*corev1.PersistentVolumeClaim](c, "c1").Spec.VolumeName = ""
	if s, err := Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "c1", "/driver"); err != nil || s.Driver != fake.Driver || len(s.NotRead) > 0 {
		t.Errorf("of a pending claim: %+v, %v", s, err)
	}
}

func TestTheSelectionIsThatOfTheInstallation(t *testing.T) {
	c := withVolume()
	other := fake.Get[*appsv1.Deployment](c, "causeway-controller").DeepCopy()
	other.Namespace, other.Labels["app.kubernetes.io/instance"] = "other", "second"
	c.Add(other)
	first := fake.Get[*appsv1.Deployment](c, "causeway-controller").Labels["app.kubernetes.io/instance"]
	for want, selection := range map[string]cluster.Selection{
		"": {Namespace: fake.Namespace, Release: first, Driver: fake.Driver}, "causeway and other": {}, "no pod of the controller": {Release: "second"},
		"not of \"x\"": {Driver: "x"}, "no driver of Causeway": {Release: "third"},
	} {
		s, err := Of(context.Background(), c.Clients().Client, selection, "default", "pv/pv-1", "/driver")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.NotRead, "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", selection, got, want)
		}
	}
}

// TestAVolumeThatIsOnNoNode: no pod of the driver is missing for a volume on a share.
func TestAVolumeThatIsOnNoNode(t *testing.T) {
	c := withVolume()
	fake.Get[*corev1.PersistentVolume](c, "pv-1").Spec.NodeAffinity = nil
	s, err := Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "c1", "/driver")
	if err != nil || len(s.NotRead) != 1 || !strings.Contains(s.NotRead[0], "the volume is not on one node") || s.Record == nil {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestADiskThatStallsDoesNotHoldTheStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withVolume()
		c.Pods.Hangs = "causeway-node-2"
		s, err := Of(t.Context(), c.Clients().Client, cluster.Selection{}, "default", "c1", "/driver")
		if err != nil || len(s.NotRead) != 1 || !strings.Contains(s.NotRead[0], "path and mounts: no end within 30s") || s.Record == nil {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// The claim of a generic ephemeral volume has the name POD-VOLUME.
func TestAPodWithAnEphemeralVolumeIsInTheStory(t *testing.T) {
	c := withVolume()
	fake.Get[*corev1.PersistentVolumeClaim](c, "c1").Name = "app-scratch"
	fake.Get[*corev1.PersistentVolume](c, "pv-1").Spec.ClaimRef.Name = "app-scratch"
	p := fake.Get[*corev1.Pod](c, "app")
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	other := p.DeepCopy()
	other.Name = "app-2"
	c.Add(other)
	s, err := Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "app-scratch", "/driver")
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for _, o := range s.Objects {
		if o.Kind == "Pod" {
			pods = append(pods, o.Name)
		}
	}
	if len(pods) != 1 || !strings.HasSuffix(pods[0], "app") || len(s.Events) != 1 {
		t.Errorf("pods %q, events %+v", pods, s.Events)
	}
}

// TestWithoutAControllerTheRecordIsRead: it comes from the node. Only the answer of the controller
// is missing.
func TestWithoutAControllerTheRecordIsRead(t *testing.T) {
	c := withVolume()
	onNode := c.Pods.OnExec
	c.Pods.OnExec = func(pod, container string, command []string, out io.Writer) error {
		if command[1] == "list" {
			return errors.New("refused")
		}
		return onNode(pod, container, command, out)
	}
	s, err := Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "c1", "/driver")
	if err != nil || s.Files == nil || s.Files.Record == nil || len(s.NotRead) != 1 ||
		!strings.HasPrefix(s.NotRead[0], "size, source, health and snapshots of the driver: ") {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAPodWithoutANodeIsInTheStory(t *testing.T) {
	c := withVolume()
	p := fake.Get[*corev1.Pod](c, "app")
	p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
	s, err := Of(context.Background(), c.Clients().Client, cluster.Selection{}, "default", "c1", "/driver")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Objects, Object{"Pod", "default/app", "Pending, without a node"}) {
		t.Errorf("%+v", s.Objects)
	}
}
