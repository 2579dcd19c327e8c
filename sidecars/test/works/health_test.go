package works

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// often has the monitor look again soon.
const often = "--health-monitor-list-volumes-interval=200ms"

func TestTheStatusOfAClaimFollowsTheHealthOfItsVolume(t *testing.T) {
	t.Parallel()
	l := newLab(t, launch(t, setup{name: "health", controllers: "provisioner,health-monitor", args: []string{often}}))
	l.bound("claim")

	cure := sicken(t, filepath.Join(world.dir, "health", "data"))
	sick := l.awaitClaim("claim", "it is sick",
		func(c *corev1.PersistentVolumeClaim) bool { return c.Status.HealthStatus != nil })
	checkLost(t, sick)
	awaitEvent(t, world.Kube, sick, corev1.EventTypeWarning, "VolumeConditionAbnormal")
	cure()
	l.awaitClaim("claim", "it is well", func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.HealthStatus == nil || len(c.Status.HealthStatus.HealthConditions) == 0
	})
	awaitEvent(t, world.Kube, sick, corev1.EventTypeNormal, "VolumeConditionNormal")
}

// A condition of a type that CSI v1.13 does not have is in an event. The API server of Kubernetes
// 1.37 rejects the status Unknown, so the status of the claim has the other condition only.
func TestAConditionOfAnUnknownTypeIsReported(t *testing.T) {
	t.Parallel()
	odd := func(answer proto.Message) {
		if r, ok := answer.(*csi.ControllerListVolumeHealthResponse); ok {
			for _, h := range r.GetEntries() {
				h.HealthStatuses = append(h.HealthStatuses,
					&csi.VolumeHealth_VolumeHealthEntry{Status: 99, Reason: "Odd", Message: "of a later CSI"})
			}
		}
	}
	l := newLab(t, launch(t, setup{name: "unknown", driver: rig.DriverOptions{Adapt: odd},
		controllers: "provisioner,health-monitor", args: []string{often, "--health-monitor-unknown-conditions"}}))
	l.bound("claim")
	sicken(t, filepath.Join(world.dir, "unknown", "data"))
	sick := l.awaitClaim("claim", "it is sick",
		func(c *corev1.PersistentVolumeClaim) bool { return c.Status.HealthStatus != nil })
	checkLost(t, sick)
	until(t, "there is an event with the unknown condition", func(ctx context.Context) error {
		events, err := world.Kube.CoreV1().Events(sick.Namespace).List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(sick.UID)})
		if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "VolumeConditionAbnormal" && strings.Contains(e.Message, "Unknown") &&
				strings.Contains(e.Message, "of a later CSI")
		}) {
			err = fmt.Errorf("there are only %v", events.Items)
		}
		return err
	})
}

// checkLost fails the test unless a claim reports that the data is lost, and nothing else.
func checkLost(t *testing.T, c *corev1.PersistentVolumeClaim) {
	t.Helper()
	all := c.Status.HealthStatus.HealthConditions
	if len(all) != 1 || all[0].Status != corev1.VolumeHealthDataLoss ||
		!strings.Contains(fmt.Sprint(all[0]), "DataMissing") {
		t.Errorf("the claim says %+v, not that the data is lost", all)
	}
}

// sicken takes the data of the only volume away; the returned function puts it back.
func sicken(t *testing.T, data string) (cure func()) {
	t.Helper()
	there := must(filepath.Glob(filepath.Join(data, "directory-*")))(t)
	if len(there) != 1 {
		t.Fatalf("in %s there is not one volume, but %q", data, there)
	}
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	away := filepath.Join(data, "away")
	move(there[0], away)
	return func() { move(away, there[0]) }
}

// awaitEvent waits for an event on a claim.
func awaitEvent(t *testing.T, kube kubernetes.Interface, c *corev1.PersistentVolumeClaim, kind, reason string) {
	t.Helper()
	until(t, "there is an event "+reason, func(ctx context.Context) error {
		events, err := kube.CoreV1().Events(c.Namespace).List(ctx,
			metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.uid=" + string(c.UID)})
		if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Type == kind }) {
			err = fmt.Errorf("there are only %v", events.Items)
		}
		return err
	})
}

// A driver of CSI v1.12 has conditions in ListVolumes, or only in ControllerGetVolume.
func TestAVolumeConditionOfCSI112IsReported(t *testing.T) {
	t.Parallel()
	for name, adapt := range map[string]func(proto.Message){"list": nil, "get": withoutLists} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, launch(t, setup{name: "old-" + name, driver: rig.DriverOptions{Foreign: true, Adapt: adapt},
				controllers: "provisioner,health-monitor", args: []string{often,
					"--health-monitor-monitor-interval=200ms"}}))
			_, volume := l.bound("claim")
			id := volume.Spec.CSI.VolumeHandle
			l.s.driver.SetCondition(id, rig.Condition{Abnormal: true, Message: "disk lost"})
			sick := l.awaitClaim("claim", "it is sick",
				func(c *corev1.PersistentVolumeClaim) bool { return c.Status.HealthStatus != nil })
			want := []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDegraded,
				Reason: "VolumeConditionAbnormal", Message: "disk lost"}}
			if got := sick.Status.HealthStatus.HealthConditions; !slices.Equal(got, want) {
				t.Errorf("the claim has %+v, want %+v", got, want)
			}
			awaitEvent(t, world.Kube, sick, corev1.EventTypeWarning, "VolumeConditionAbnormal")
			l.s.driver.SetCondition(id, rig.Condition{Message: "fine"})
			l.awaitClaim("claim", "it is well",
				func(c *corev1.PersistentVolumeClaim) bool { return c.Status.HealthStatus == nil })
			awaitEvent(t, world.Kube, sick, corev1.EventTypeNormal, "VolumeConditionNormal")
			lists, gets := len(l.s.driver.Calls("ListVolumes")), len(l.s.driver.Calls("ControllerGetVolume"))
			if (lists > 0) != (name == "list") || (gets > 0) != (name == "get") {
				t.Errorf("%d calls of ListVolumes and %d of ControllerGetVolume", lists, gets)
			}
		})
	}
}

// withoutLists removes LIST_VOLUMES from a driver.
func withoutLists(answer proto.Message) {
	if r, ok := answer.(*csi.ControllerGetCapabilitiesResponse); ok {
		r.Capabilities = slices.DeleteFunc(r.Capabilities, func(c *csi.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_LIST_VOLUMES
		})
	}
}

// With its gate off the API server drops the field. The monitor notices that, reports it once, and
// makes events.
func TestAnAPIServerWithoutTheGateGetsEventsAndNoStatus(t *testing.T) {
	t.Parallel()
	plane := must(rig.StartPlane(t.Context(), controlplane.Options{WithoutControllerManager: true}))(t)
	defer plane.Close()
	dir := filepath.Join(world.dir, "gate")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	driver := must(rig.NewDriver(dir, rig.DriverOptions{Name: "gate.csi.example"}))(t)
	defer driver.Stop()
	claim := boundByHand(t, plane.Kube, driver)
	p := must(rig.StartProcess(world.binary,
		[]string{"KUBECONFIG=" + plane.Kubeconfig(), "KUBE_CACHE_MUTATION_DETECTOR=true"},
		"--csi-address="+driver.Socket, "--controllers=health-monitor", often))(t)
	t.Cleanup(func() { p.Stop() })

	sicken(t, filepath.Join(dir, "data"))
	awaitEvent(t, plane.Kube, claim, corev1.EventTypeWarning, "VolumeConditionAbnormal")
	until(t, "the log says that the gate is off", func(context.Context) error {
		if !strings.Contains(p.Log(), "its feature gate CSIVolumeHealth is off") {
			return errors.New(end(p.Log()))
		}
		return nil
	})
	now := must(plane.Kube.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), claim.Name,
		metav1.GetOptions{}))(t)
	if now.Status.HealthStatus != nil {
		t.Errorf("the API server has no such field, but says %v", now.Status.HealthStatus)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("csi-sidecars ended with code %d:\n%s", code, end(p.Log()))
	}
}

// boundByHand makes a volume, and a claim bound to it, where no controller does.
func boundByHand(t *testing.T, kube kubernetes.Interface, driver *rig.Driver) *corev1.PersistentVolumeClaim {
	t.Helper()
	stored := must(driver.Storage.Create(t.Context(), backend.CreateOptions{Name: "one", Required: 1 << 30}))(t)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	none := ""
	claims := kube.CoreV1().PersistentVolumeClaims("default")
	claim := must(claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes,
			Resources:        corev1.VolumeResourceRequirements{Requests: size},
			StorageClassName: &none, VolumeName: "volume"},
	}, created))(t)
	volume := must(kube.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume"},
		Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace,
				Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver.Name, VolumeHandle: stored.ID}}},
	}, created))(t)
	volume.Status.Phase, claim.Status.Phase = corev1.VolumeBound, corev1.ClaimBound
	must(kube.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), volume, metav1.UpdateOptions{}))(t)
	return must(claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}))(t)
}
