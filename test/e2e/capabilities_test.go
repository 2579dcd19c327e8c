package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/driver"
)

// declared is what of a driver file can be compared with what the driver says of itself.
type declared struct {
	DriverInfo struct {
		Name         string
		Capabilities map[string]bool
		TopologyKeys []string
	}
	VolumeAttributesClass, SnapshotClass, GroupSnapshotClass map[string]any
	InlineVolumes                                            []any
}

// exceptions are what a driver has and its configuration doesn't declare, by "configuration capability", with the reason.
var exceptions = map[string]string{
	"hostpath-directory block":            "a directory is no device",
	"hostpath-directory groupSnapshot":    "images only: docs/snapshots.md",
	"hostpath-directory nodeExpansion":    "a directory has no filesystem to grow on the node",
	"hostpath-directory snapshotMetadata": "its specs want the external-snapshot-metadata sidecar",
	"hostpath-image snapshotMetadata":     "its specs want the external-snapshot-metadata sidecar",
}

func TestTheDeclarationsAreTheDrivers(t *testing.T) {
	b := (*hostpath.Backend)(nil) // its type says it all
	controller := func(want csi.ControllerServiceCapability_RPC_Type) bool {
		return slices.ContainsFunc(driver.ControllerCapabilities(b).GetCapabilities(), func(c *csi.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() == want
		})
	}
	plugin := func(want csi.PluginCapability_Service_Type) bool {
		return slices.ContainsFunc(driver.PluginCapabilities(b).GetCapabilities(), func(c *csi.PluginCapability) bool {
			return c.GetService() != nil && c.GetService().GetType() == want
		})
	}
	node := func(want csi.NodeServiceCapability_RPC_Type) bool {
		return slices.ContainsFunc(driver.NodeCapabilities(b).GetCapabilities(), func(c *csi.NodeServiceCapability) bool {
			return c.GetRpc().GetType() == want
		})
	}
	online := slices.ContainsFunc(driver.PluginCapabilities(b).GetCapabilities(), func(c *csi.PluginCapability) bool {
		return c.GetVolumeExpansion().GetType() == csi.PluginCapability_VolumeExpansion_ONLINE
	})
	_, limits := any(b).(backend.Limiter)
	_, inline := any(b).(backend.Inliner)
	expands := controller(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	for _, dir := range configurations(t) {
		name := filepath.Base(dir)
		data, err := os.ReadFile(filepath.Join(dir, driverFile))
		if err != nil {
			t.Fatal(err)
		}
		var d declared
		if err := yaml.Unmarshal(data, &d); err != nil {
			t.Fatal(err)
		}
		topology := plugin(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
		if topology && !slices.Equal(d.DriverInfo.TopologyKeys, []string{driver.TopologyKey(d.DriverInfo.Name)}) {
			t.Errorf("%s: the topology keys are %q, the driver's %q", name, d.DriverInfo.TopologyKeys, driver.TopologyKey(d.DriverInfo.Name))
		}
		has := map[string]bool{
			"capacity":            controller(csi.ControllerServiceCapability_RPC_GET_CAPACITY),
			"controllerExpansion": expands,
			"offlineExpansion":    expands,
			"onlineExpansion":     expands && online,
			"nodeExpansion":       node(csi.NodeServiceCapability_RPC_EXPAND_VOLUME),
			"pvcDataSource":       controller(csi.ControllerServiceCapability_RPC_CLONE_VOLUME),
			"readWriteOncePod":    controller(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
			"snapshotDataSource":  controller(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
			"groupSnapshot":       plugin(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE),
			"snapshotMetadata":    plugin(csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE),
			"topology":            topology,
			"volumeLimits":        limits,
			// These aren't said by CSI. They are false of whatever is on one of many nodes, of a driver without VOLUME_MOUNT_GROUP, and of one
			// whose CSIDriver says that mounts have no labels of their own; the last is what a driver lacks.
			"RWX": false, "capReadOnlyMany": false, "singleNodeVolume": false, "volumeMountGroup": false, "seLinuxMount": false,
			"FSResizeFromSourceNotSupported": false,
			// Nor are these, which are what the volumes are for.
			"persistence": true, "block": true, "exec": true, "fsGroup": true, "multipods": true, "multiplePVsSameID": true,
		}
		for capability := range d.DriverInfo.Capabilities {
			if _, known := has[capability]; !known {
				t.Errorf("%s: nothing here says whether the driver has %s", name, capability)
			}
		}
		for capability, has := range has {
			key := name + " " + capability
			got := d.DriverInfo.Capabilities[capability]
			switch _, excepted := exceptions[key]; {
			case excepted && got:
				t.Errorf("%s: it is declared, and an exception says that it isn't", key)
			case excepted && !has:
				t.Errorf("%s: it is an exception, and the driver hasn't got it", key)
			case !excepted && got != has:
				t.Errorf("%s: declared: %v; the driver has it: %v", key, got, has)
			}
		}
		for what, is := range map[string][2]bool{
			"VolumeAttributesClass": {len(d.VolumeAttributesClass) > 0, controller(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)},
			"SnapshotClass":         {len(d.SnapshotClass) > 0, controller(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)},
			"InlineVolumes":         {len(d.InlineVolumes) > 0, inline},
		} {
			if is[0] != is[1] {
				t.Errorf("%s: %s is there: %v; the driver has it: %v", name, what, is[0], is[1])
			}
		}
	}
}
