package sidecar

import (
	"runtime/debug"
	"testing"
)

func TestQueuesHaveTheirControllers(t *testing.T) {
	for queue, want := range map[string]string{
		"claims": "provisioner", "volumes": "provisioner", "unsavedpvs": "provisioner", "csistoragecapacity": "provisioner",
		"csi-attacher-va": "attacher", "csi-attacher-pv": "attacher",
		"csi-snapshotter-content": "snapshotter", "csi-snapshotter-groupsnapshotcontent": "snapshotter",
		"snapshot-controller-content": "snapshot-controller", "snapshot-controller-snapshot": "snapshot-controller",
		"hostpath.csi.k8s.io-pvc": "resizer",
		"somebody's":              "", "": "",
	} {
		if got := OfQueue(queue); got != want {
			t.Errorf("%q is of %q, want %q", queue, got, want)
		}
	}
}

func TestMethodsHaveTheirControllers(t *testing.T) {
	for method, want := range map[string]string{
		"/csi.v1.Controller/CreateVolume": "provisioner", "/csi.v1.Controller/ControllerUnpublishVolume": "attacher",
		"/csi.v1.Controller/ControllerModifyVolume": "resizer", "/csi.v1.GroupController/CreateVolumeGroupSnapshot": "snapshotter",
		"/csi.v1.Identity/Probe": "", "/csi.v1.Controller/ControllerGetCapabilities": "", "": "",
	} {
		if got := ofMethod(method); got != want {
			t.Errorf("%q is of %q, want %q", method, got, want)
		}
	}
}

// The stack of this test has none of the packages; a recorded stack has.
func TestStacksHaveTheirControllers(t *testing.T) {
	if got := OfStack(); got != "" {
		t.Errorf("this test is of %q", got)
	}
	if got := ofTrace(string(debug.Stack())); got != "" {
		t.Errorf("this test's trace is of %q", got)
	}
	for trace, want := range map[string]string{
		"panic(...)\ngithub.com/kubernetes-csi/external-attacher/v4/pkg/controller.f()\n":                                                                            "attacher",
		"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller.f()\ngithub.com/kubernetes-csi/external-resizer/v2/pkg/x.g()\n":                             "provisioner",
		"github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller.f()\n":                                                                             "snapshotter",
		"github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller.f()\ngithub.com/causeway-csi/causeway/sidecars/internal/snapshotcontroller.Run()\n": "snapshot-controller",
		"k8s.io/client-go/tools/cache.f()\ngithub.com/causeway-csi/causeway/sidecars/internal/kube.start()\n":                                                        "",
	} {
		if got := ofTrace(trace); got != want {
			t.Errorf("%q is of %q, want %q", trace, got, want)
		}
	}
}

// Called on behalf of a controller, as log lines are.
func TestAStackIsThatOfTheCaller(t *testing.T) {
	own := packages
	t.Cleanup(func() { packages = own })
	packages = append(packages, struct {
		prefix,
		controller string
	}{"github.com/causeway-csi/causeway/sidecars/internal/sidecar.onBehalf", "toy"})
	if got := onBehalf(); got != "toy" {
		t.Errorf("got %q", got)
	}
	if got := OfStack(); got != "" {
		t.Errorf("above it: got %q", got)
	}
}

//go:noinline
func onBehalf() string { return OfStack() }
