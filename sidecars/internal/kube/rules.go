package kube

import rbacv1 "k8s.io/api/rbac/v1"

// Rules are the permissions of a controller.
type Rules struct {
	Cluster   []rbacv1.PolicyRule
	Namespace []rbacv1.PolicyRule // in the namespace of its pod
}

// API groups. The core group is "".
const (
	storageGroup       = "storage.k8s.io"
	snapshotGroup      = "snapshot.storage.k8s.io"
	groupSnapshotGroup = "groupsnapshot.storage.k8s.io"
)

// read has the verbs of informers, and get for reads past the cache, which reveals no more than
// list.
var read = []string{"get", "list", "watch"}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// reading returns a rule with the verbs of read and further ones.
func reading(group, resource string, more ...string) rbacv1.PolicyRule {
	return rule(group, resource, append(more, read...)...)
}

// when returns rules if on is true, else none.
func when(on bool, rules ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if !on {
		return nil
	}
	return rules
}

// events is for a recorder, which creates events and patches repeated events. It never updates an
// event.
var events = rule("", "events", "create", "patch")

// secrets is for the secrets that a StorageClass or a VolumeSnapshotClass names.
var secrets = rule("", "secrets", "get")

// ElectionRules is for the leases of an election and their events. patch is for the mark on the
// lease of the upstream binary that this process replaces.
func ElectionRules() Rules {
	return Rules{Namespace: []rbacv1.PolicyRule{rule("coordination.k8s.io", "leases", "create", "get", "patch",
		"update"), events}}
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

// ProvisionerRuleOptions are the conditions of the rules of the provisioner.
type ProvisionerRuleOptions struct {
	Secrets         bool // classes name secrets
	Topology        bool // the driver has topology
	Publish         bool // the driver attaches: an attached volume is not deleted
	Snapshots       bool // volumes are made from snapshots
	Attributes      bool // claims may name a VolumeAttributesClass: the gate is on and the server has the API
	CrossNamespace  bool // the gate CrossNamespaceVolumeDataSource is on
	NodeDeployment  bool // it runs on every node, and asks the driver for the topology of its node
	Capacity        bool // it publishes CSIStorageCapacity objects
	CapacityOwner   int  // --capacity-ownerref-level: the level of their owner above the pod; below 0: no owner
	SnapshotSweeper bool // it adds and removes the finalizer of snapshots that are being copied: needs Snapshots
}

// ProvisionerRules is for the provisioner.
func ProvisionerRules(o ProvisionerRuleOptions) Rules {
	r := Rules{Cluster: append(when(o.Secrets, secrets),
		reading("", "persistentvolumes", "create", "delete", "patch"),
		// annotations, and the finalizer of a claim that is being cloned
		reading("", "persistentvolumeclaims", "update"),
		reading(storageGroup, "storageclasses"),
		events,
	)}
	add := func(on bool, rules ...rbacv1.PolicyRule) { r.Cluster = append(r.Cluster, when(on, rules...)...) }
	add(o.Snapshots, rule(snapshotGroup, "volumesnapshots", "get"),
		rule(snapshotGroup, "volumesnapshotcontents", "get"))
	add(o.SnapshotSweeper, reading(snapshotGroup, "volumesnapshots", "update"))
	// Capacity is published by topology, which is read also if the driver has none.
	add((o.Topology || o.Capacity) && !o.NodeDeployment, reading(storageGroup, "csinodes"), reading("", "nodes"))
	add(o.Publish, reading(storageGroup, "volumeattachments"))
	add(o.Attributes, rule(storageGroup, "volumeattributesclasses", "get"))
	add(o.CrossNamespace, reading("gateway.networking.k8s.io", "referencegrants"))

	r.Namespace = append(when(o.Capacity, reading(storageGroup, "csistoragecapacities", "create", "update", "delete")),
		append(when(o.Capacity && o.CapacityOwner >= 0, rule("", "pods", "get")),
			// The pod names its owner, a ReplicaSet, which names the Deployment.
			when(o.Capacity && o.CapacityOwner >= 2, rule("apps", "replicasets", "get"))...)...)
	return r
}

// ResizerRules is for the resizer. With handleInUse (--handle-volume-inuse-error) it watches all
// pods of the cluster. With attributes it changes the VolumeAttributesClass of volumes.
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

// SnapshotterRules is for the snapshotter, on nodes, too: it sees the contents of other nodes and
// ignores them.
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

// SnapshotControllerRules is for the snapshot controller, which creates the snapshots of a group
// snapshot. With distributed (--enable-distributed-snapshotting) it looks up the node of a volume.
func SnapshotControllerRules(groups, distributed bool) Rules {
	r := Rules{Cluster: []rbacv1.PolicyRule{
		reading("", "persistentvolumes"),
		reading("", "persistentvolumeclaims", "update"), // the finalizer of the source claim of a snapshot
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
