package driver

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// A driver has a capability if the type of its backend has the methods for this capability. The
// value of the backend is not used, and may be a nil pointer.

// is reports whether the type of a backend implements T.
func is[T any](b backend.Backend) bool {
	_, ok := b.(T)
	return ok
}

// each returns the results of wrap for all items.
func each[T, C any](items []T, wrap func(T) C) []C {
	var all []C
	for _, item := range items {
		all = append(all, wrap(item))
	}
	return all
}

// PluginCapabilities returns the capabilities of a driver with backend b. CSI spec v1.13,
// GetPluginCapabilities.
func PluginCapabilities(b backend.Backend) *csi.GetPluginCapabilitiesResponse {
	return pluginCapabilities(b, true)
}

// pluginCapabilities returns the capabilities of a server. controllers reports whether the server
// has the services for sidecars.
func pluginCapabilities(b backend.Backend, controllers bool) *csi.GetPluginCapabilitiesResponse {
	var services []csi.PluginCapability_Service_Type
	add := func(has bool, service csi.PluginCapability_Service_Type) {
		if has {
			services = append(services, service)
		}
	}
	local := is[backend.NodeLocal](b)
	add(controllers, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	add(local, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	add(local && is[backend.Snapshotter](b), csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
	add(controllers && is[backend.GroupSnapshotter](b), csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	add(controllers && is[backend.Differ](b), csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	capabilities := each(services, func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t},
		}}
	})
	if is[backend.Expander](b) {
		capabilities = append(capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
		}})
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: capabilities}
}

// ControllerCapabilities returns the capabilities of the Controller service for backend b. CSI spec
// v1.13, ControllerGetCapabilities.
func ControllerCapabilities(b backend.Backend) *csi.ControllerGetCapabilitiesResponse {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	add := func(has bool, more ...csi.ControllerServiceCapability_RPC_Type) {
		if has {
			types = append(types, more...)
		}
	}
	attaches, lists := is[backend.Attacher](b), is[backend.Lister](b)
	add(lists, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	add(attaches, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	add(attaches && lists, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	add(is[backend.CapacityReporter](b), csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	add(is[backend.Expander](b), csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	add(is[backend.Snapshotter](b), csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
	add(is[backend.Cloner](b), csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	add(is[backend.Modifier](b), csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	add(is[backend.HealthReporter](b), csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: each(types,
		func(t csi.ControllerServiceCapability_RPC_Type) *csi.ControllerServiceCapability {
			return &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
				Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
			}}
		})}
}

// NodeCapabilities returns the capabilities of the Node service for backend b. CSI spec v1.13,
// NodeGetCapabilities.
func NodeCapabilities(b backend.Backend) *csi.NodeGetCapabilitiesResponse {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if is[backend.Expander](b) {
		types = append(types, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	if is[backend.HealthReporter](b) || is[backend.Reacher](b) {
		types = append(types, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
			csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH)
	}
	if is[backend.Grouper](b) {
		types = append(types, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: each(types,
		func(t csi.NodeServiceCapability_RPC_Type) *csi.NodeServiceCapability {
			return &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
				Rpc: &csi.NodeServiceCapability_RPC{Type: t},
			}}
		})}
}

// GroupCapabilities returns the capabilities of the GroupController service. CSI spec v1.13,
// GroupControllerGetCapabilities.
func GroupCapabilities() *csi.GroupControllerGetCapabilitiesResponse {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}
}

// TopologyKey returns the topology key of the driver with this name. The value of the key
// identifies the node that holds a volume.
func TopologyKey(driver string) string { return strings.ToLower(driver) + "/node" }

// SystemKey returns the topology key for the operating system of a node of the driver with this
// name: linux or windows. A class can require it with allowedTopologies. Volumes do not have it, as
// the key of TopologyKey identifies their node.
func SystemKey(driver string) string { return strings.ToLower(driver) + "/os" }
