package snapshotcontroller

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	groups "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions/volumegroupsnapshot/v1"
	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions/volumesnapshot/v1"
	grouplisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumegroupsnapshot/v1"
	listers "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumesnapshot/v1"
)

// Upstream's controller (v8.7.0) writes an annotation into contents from its informers before it
// deletes them: setAnnVolumeSnapshotBeingDeleted, and the same for group snapshots. The snapshotter
// in this process reads the same maps, and the runtime ends a process on a concurrent read and
// write of a map. So this controller gets copies. It copies its lists itself.

type contents struct {
	snapshots.VolumeSnapshotContentInformer
}

func (c contents) Lister() listers.VolumeSnapshotContentLister {
	return copiedContents{c.VolumeSnapshotContentInformer.Lister()}
}

type copiedContents struct {
	listers.VolumeSnapshotContentLister
}

func (c copiedContents) Get(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	o, err := c.VolumeSnapshotContentLister.Get(name)
	return o.DeepCopy(), err
}

type groupContents struct {
	groups.VolumeGroupSnapshotContentInformer
}

func (c groupContents) Lister() grouplisters.VolumeGroupSnapshotContentLister {
	return copiedGroupContents{c.VolumeGroupSnapshotContentInformer.Lister()}
}

type copiedGroupContents struct {
	grouplisters.VolumeGroupSnapshotContentLister
}

func (c copiedGroupContents) Get(name string) (*groupv1.VolumeGroupSnapshotContent, error) {
	o, err := c.VolumeGroupSnapshotContentLister.Get(name)
	return o.DeepCopy(), err
}
