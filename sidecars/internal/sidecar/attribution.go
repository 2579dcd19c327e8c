package sidecar

import (
	"runtime"
	"slices"
	"strings"
)

// These tables tell which controller a package, a CSI method and a work queue belong to, for log
// lines and metrics: upstream's code does not name its controller.

// packages are prefixes of import paths, longer prefixes first.
var packages = []struct{ prefix, controller string }{
	{"github.com/kubernetes-csi/external-attacher/", "attacher"},
	{"github.com/kubernetes-csi/external-provisioner/", "provisioner"},
	{"sigs.k8s.io/sig-storage-lib-external-provisioner/", "provisioner"},
	{"github.com/kubernetes-csi/external-resizer/", "resizer"},
	{"github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller", "snapshot-controller"},
	{"github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller", "snapshotter"},
	{"github.com/kubernetes-csi/external-snapshotter/v8/pkg/snapshotter", "snapshotter"},
	{"github.com/kubernetes-csi/external-snapshotter/v8/pkg/group_snapshotter", "snapshotter"},
	{"github.com/causeway-csi/causeway/sidecars/internal/attacher", "attacher"},
	{"github.com/causeway-csi/causeway/sidecars/internal/provisioner", "provisioner"},
	{"github.com/causeway-csi/causeway/sidecars/internal/resizer", "resizer"},
	{"github.com/causeway-csi/causeway/sidecars/internal/snapshotter", "snapshotter"},
	{"github.com/causeway-csi/causeway/sidecars/internal/snapshotcontroller", "snapshot-controller"},
	{"github.com/causeway-csi/causeway/sidecars/internal/healthmonitor", "health-monitor"},
	{"github.com/causeway-csi/causeway/sidecars/internal/livenessprobe", "livenessprobe"},
	{"github.com/causeway-csi/causeway/sidecars/internal/registrar", "node-driver-registrar"},
}

// methods are CSI methods without their service.
var methods = map[string]string{
	"CreateVolume":               "provisioner",
	"DeleteVolume":               "provisioner",
	"GetCapacity":                "provisioner",
	"NodeGetInfo":                "provisioner",
	"ControllerPublishVolume":    "attacher",
	"ControllerUnpublishVolume":  "attacher",
	"ListVolumes":                "attacher",
	"ControllerExpandVolume":     "resizer",
	"ControllerModifyVolume":     "resizer",
	"CreateSnapshot":             "snapshotter",
	"DeleteSnapshot":             "snapshotter",
	"ListSnapshots":              "snapshotter",
	"GetSnapshot":                "snapshotter",
	"CreateVolumeGroupSnapshot":  "snapshotter",
	"DeleteVolumeGroupSnapshot":  "snapshotter",
	"GetVolumeGroupSnapshot":     "snapshotter",
	"ControllerListVolumeHealth": "health-monitor",
	"ControllerGetVolumeHealth":  "health-monitor",
	"ControllerGetVolume":        "health-monitor",
}

// ofMethod returns the controller that calls a method, such as /csi.v1.Controller/CreateVolume, or
// "" if several do.
func ofMethod(full string) string {
	return methods[full[strings.LastIndexByte(full, '/')+1:]]
}

// OfQueue returns the controller of a work queue with a name of upstream, or "". Some names begin
// with that of the driver, such as "<driver>-pvc".
func OfQueue(name string) string {
	switch {
	case slices.Contains([]string{"claims", "volumes", "unsavedpvs", "items", "csitopology", "csistoragecapacity"},
		name):
		return "provisioner"
	case strings.HasPrefix(name, "csi-attacher-"):
		return "attacher"
	case strings.HasPrefix(name, "snapshot-controller-"):
		return "snapshot-controller"
	case strings.HasPrefix(name, "csi-snapshotter-"):
		return "snapshotter"
	case strings.HasSuffix(name, "-pvc"):
		return "resizer"
	}
	return ""
}

// OfStack returns the controller whose package is on the stack of the caller, or "".
func OfStack() string {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		for _, p := range packages {
			if strings.HasPrefix(frame.Function, p.prefix) {
				return p.controller
			}
		}
		if !more {
			return ""
		}
	}
}

// ofTrace is OfStack for a trace of debug.Stack.
func ofTrace(stack string) string {
	first, name := len(stack), ""
	for _, p := range packages {
		if i := strings.Index(stack, p.prefix); i >= 0 && i < first {
			first, name = i, p.controller
		}
	}
	return name
}
