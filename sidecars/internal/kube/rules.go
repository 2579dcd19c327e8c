package kube

import rbacv1 "k8s.io/api/rbac/v1"

// Rules is what a controller may do with the API.
type Rules struct {
	Cluster   []rbacv1.PolicyRule
	Namespace []rbacv1.PolicyRule // in the namespace it runs in
}

// API groups. Core is the empty one.
const (
	storageGroup       = "storage.k8s.io"
	snapshotGroup      = "snapshot.storage.k8s.io"
	groupSnapshotGroup = "groupsnapshot.storage.k8s.io"
)

// read is what informers need, and a get for whoever looks past its cache. Who may list everything learns nothing by it.
var read = []string{"get", "list", "watch"}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// reading is rule with read, and more verbs.
func reading(group, resource string, more ...string) rbacv1.PolicyRule {
	return rule(group, resource, append(more, read...)...)
}

// when is the rules, or none.
func when(on bool, rules ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if !on {
		return nil
	}
	return rules
}

// events is for a recorder: it creates an event, and patches one that occurs again. It never updates one.
var events = rule("", "events", "create", "patch")

// secrets is for the credentials that a StorageClass or a VolumeSnapshotClass names.
var secrets = rule("", "secrets", "get")

// ElectionRules is for the leases of an election, and for the events that say who won it. patch is for the mark on the lease of
// the upstream binary that this one takes over from.
func ElectionRules() Rules {
	return Rules{Namespace: []rbacv1.PolicyRule{rule("coordination.k8s.io", "leases", "create", "get", "patch", "update"), events}}
}

// AttacherRules is for the attacher.
func AttacherRules(needsSecrets bool) Rules {
	return Rules{Cluster: append(when(needsSecrets, secrets),
		reading("", "persistentvolumes", "patch"), // its finalizer
		reading(storageGroup, "csinodes"),
		reading(storageGroup, "volumeattachments", "patch"), // its finalizer, and annotations
		rule(storageGroup, "volumeattachments/status", "patch"),
	)}
}

// ProvisionerRuleOptions is what the provisioner's rules depend on.
type ProvisionerRuleOptions struct {
	Secrets         bool // classes name secrets
	Topology        bool // the driver has topology
	Publish         bool // the driver is told to attach: no volume is deleted that is attached
	Snapshots       bool // volumes are made of snapshots
	Attributes      bool // claims may name a VolumeAttributesClass: the gate is on and the API there
	CrossNamespace  bool // the gate CrossNamespaceVolumeDataSource is on
	NodeDeployment  bool // it runs on every node, and asks the driver for the topology of that one
	Capacity        bool // it publishes CSIStorageCapacity objects
	CapacityOwner   int  // --capacity-ownerref-level: how far above the pod their owner is; below 0 they have none
	SnapshotSweeper bool // it protects snapshots that are being copied, and takes that away again: needs Snapshots
}

// ProvisionerRules is for the provisioner.
func ProvisionerRules(o ProvisionerRuleOptions) Rules {
	r := Rules{Cluster: append(when(o.Secrets, secrets),
		reading("", "persistentvolumes", "create", "delete", "patch"),
		reading("", "persistentvolumeclaims", "update"), // annotations, and the finalizer of a claim that is being cloned
		reading(storageGroup, "storageclasses"),
		events,
	)}
	add := func(on bool, rules ...rbacv1.PolicyRule) { r.Cluster = append(r.Cluster, when(on, rules...)...) }
	add(o.Snapshots, rule(snapshotGroup, "volumesnapshots", "get"), rule(snapshotGroup, "volumesnapshotcontents", "get"))
	add(o.SnapshotSweeper, reading(snapshotGroup, "volumesnapshots", "update"))
	// Capacity is published by topology, which is looked up for it whether or not the driver says that it has any.
	add((o.Topology || o.Capacity) && !o.NodeDeployment, reading(storageGroup, "csinodes"), reading("", "nodes"))
	add(o.Publish, reading(storageGroup, "volumeattachments"))
	add(o.Attributes, rule(storageGroup, "volumeattributesclasses", "get"))
	add(o.CrossNamespace, reading("gateway.networking.k8s.io", "referencegrants"))

	r.Namespace = append(when(o.Capacity, reading(storageGroup, "csistoragecapacities", "create", "update", "delete")),
		append(when(o.Capacity && o.CapacityOwner >= 0, rule("", "pods", "get")),
			// A pod says who owns it. Who owns that one, a ReplicaSet says.
			when(o.Capacity && o.CapacityOwner >= 2, rule("apps", "replicasets", "get"))...)...)
	return r
}

// ResizerRules is for the resizer. handleInUse is --handle-volume-inuse-error: it then watches every pod of the cluster.
// attributes says that it changes volumes to another VolumeAttributesClass.
func ResizerRules(needsSecrets, handleInUse, attributes bool) Rules {
	r := Rules{Cluster: append(when(needsSecrets, secrets),
		reading("", "persistentvolumes", "patch"),
		reading("", "persistentvolumeclaims"),
		rule("", "persistentvolumeclaims/status", "patch"),
		events,
	)}
	r.Cluster = append(r.Cluster, when(handleInUse, reading("", "pods"))...)
	r.Cluster = append(r.Cluster, when(attributes, reading(storageGroup, "volumeattributesclasses"))...)
	return r
}

// SnapshotterRules is for the snapshotter, on nodes or not: those contents that are another node's it leaves alone, but sees.
func SnapshotterRules(needsSecrets, groups bool) Rules {
	r := Rules{Cluster: append(when(needsSecrets, secrets),
		events,
		reading(snapshotGroup, "volumesnapshotclasses"),
		reading(snapshotGroup, "volumesnapshotcontents", "patch"),
		rule(snapshotGroup, "volumesnapshotcontents/status", "patch", "update"),
	)}
	r.Cluster = append(r.Cluster, when(groups,
		reading(groupSnapshotGroup, "volumegroupsnapshotclasses"),
		reading(groupSnapshotGroup, "volumegroupsnapshotcontents", "patch"),
		rule(groupSnapshotGroup, "volumegroupsnapshotcontents/status", "patch", "update"),
	)...)
	return r
}

// SnapshotControllerRules is for the snapshot controller. It makes the snapshots of a group itself; a user makes others.
// distributed is --enable-distributed-snapshotting: it then looks for the node that a volume is on.
func SnapshotControllerRules(groups, distributed bool) Rules {
	r := Rules{Cluster: []rbacv1.PolicyRule{
		reading("", "persistentvolumes"),
		reading("", "persistentvolumeclaims", "update"), // the finalizer of a claim that a snapshot is taken of
		events,
		reading(snapshotGroup, "volumesnapshotclasses"),
		reading(snapshotGroup, "volumesnapshotcontents", "create", "delete", "patch"),
		reading(snapshotGroup, "volumesnapshots", "patch", "update"),
		rule(snapshotGroup, "volumesnapshots/status", "update"),
	}}
	r.Cluster = append(r.Cluster, when(groups,
		rule(snapshotGroup, "volumesnapshotcontents/status", "patch"),
		rule(snapshotGroup, "volumesnapshots", "create", "delete"),
		rule(snapshotGroup, "volumesnapshots/status", "patch"),
		reading(groupSnapshotGroup, "volumegroupsnapshotclasses"),
		reading(groupSnapshotGroup, "volumegroupsnapshotcontents", "create", "delete", "patch"),
		reading(groupSnapshotGroup, "volumegroupsnapshots", "patch", "update"),
		rule(groupSnapshotGroup, "volumegroupsnapshots/status", "update"),
	)...)
	r.Cluster = append(r.Cluster, when(distributed, reading("", "nodes"))...)
	return r
}
