package sidecar

import (
	"runtime"
	"slices"
	"strings"
)

// What upstream's code does not say of itself: which controller a package, a CSI method and a queue belong to. Log lines and
// metrics get their controller from here.

// packages are import paths, the more exact ones first.
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

// methods are CSI's, without their service.
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

// ofMethod returns the controller that makes a call, such as /csi.v1.Controller/CreateVolume, or nothing where several do.
func ofMethod(full string) string {
	return methods[full[strings.LastIndexByte(full, '/')+1:]]
}

// OfQueue returns the controller that has a work queue, by the name upstream gave it, or nothing. Those of driver and
// operation are "<driver>-pvc" and the like.
func OfQueue(name string) string {
	switch {
	case slices.Contains([]string{"claims", "volumes", "unsavedpvs", "items", "csitopology", "csistoragecapacity"}, name):
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

// OfStack returns the controller on whose behalf the caller runs, by the packages on its stack; nothing for what all share.
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

// ofTrace is OfStack for a trace that debug.Stack wrote.
func ofTrace(stack string) string {
	first, who := len(stack), ""
	for _, p := range packages {
		if i := strings.Index(stack, p.prefix); i >= 0 && i < first {
			first, who = i, p.controller
		}
	}
	return who
}
