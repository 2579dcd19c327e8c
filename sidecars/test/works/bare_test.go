package works

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

func TestADriverThatCanDoLittleHasControllersSkippedAndIsAttachedOnPaper(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		adapt func(proto.Message)
		hook  func(context.Context, *rig.Call) error
	}{
		"no-capabilities":       {adapt: withoutCapabilities},
		"no-controller-service": {adapt: withoutController},
		"no-node-service":       {adapt: withoutCapabilities, hook: withoutNode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := launch(t, setup{name: name, controllers: all, driver: rig.DriverOptions{Adapt: c.adapt}, hook: c.hook,
				rights: []string{"--driver-topology=false", "--driver-attach=false", "--driver-snapshots=false",
					"--driver-groups=false"}})
			l := newLab(t, s)
			a := l.attached(l.foreign(), l.csiNode())
			if len(a.Status.AttachmentMetadata) > 0 || len(s.driver.Calls("ControllerPublishVolume")) > 0 {
				t.Errorf("the driver attaches nothing, but was asked to: %v", a.Status)
			}
			for _, skipped := range []string{"provisioner", "resizer", "snapshotter"} {
				l.checkSkipped(skipped)
			}
			l.checkHealth("attacher", http.StatusOK)
		})
	}
}

// checkSkipped fails the test unless the log reports that a controller was skipped, and its health
// that this is no failure.
func (l *lab) checkSkipped(controller string) {
	l.Helper()
	line := fmt.Sprintf(`"Controller is skipped" name=%q reason="not supported by the driver`, controller)
	if !strings.Contains(l.s.Log(), line) {
		l.Errorf("the log does not say %s", line)
	}
	l.checkHealth(controller, http.StatusOK)
}

func (l *lab) checkHealth(name string, want int) {
	l.Helper()
	if code, body := l.s.get(l.T, "/healthz/"+name); code != want {
		l.Errorf("/healthz/%s answers %d %s, not %d", name, code, body, want)
	}
}

// withoutCapabilities leaves a driver its services, without anything optional in them.
func withoutCapabilities(answer proto.Message) {
	switch r := answer.(type) {
	case *csi.ControllerGetCapabilitiesResponse:
		r.Capabilities = nil
	case *csi.NodeGetCapabilitiesResponse:
		r.Capabilities = nil
	case *csi.GroupControllerGetCapabilitiesResponse:
		r.Capabilities = nil
	}
}

// withoutController makes a driver a driver for nodes only.
func withoutController(answer proto.Message) {
	withoutCapabilities(answer)
	if r, ok := answer.(*csi.GetPluginCapabilitiesResponse); ok {
		r.Capabilities = nil
	}
}

// withoutNode is a driver whose node service is not on this socket.
func withoutNode(_ context.Context, c *rig.Call) error {
	if strings.HasPrefix(c.Method, "Node") {
		return status.Error(codes.Unimplemented, "unknown service csi.v1.Node")
	}
	return nil
}

// foreign makes a PersistentVolume of the driver by hand, without a provisioner.
func (l *lab) foreign() *corev1.PersistentVolume {
	l.Helper()
	return must(world.Kube.CoreV1().PersistentVolumes().Create(l.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: l.name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: l.s.driver.Name, VolumeHandle: "made-by-hand"}},
			StorageClassName: l.name,
		},
	}, created))(l)
}
