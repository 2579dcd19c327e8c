package snapshotcontroller

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	groups "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions/volumegroupsnapshot/v1"
	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions/volumesnapshot/v1"
	grouplisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumegroupsnapshot/v1"
	listers "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumesnapshot/v1"
)

// Upstream's controller, in v8.7.0, writes an annotation into contents that it has from its informers, where it is about to
// delete them: setAnnVolumeSnapshotBeingDeleted and its sister for groups. The snapshotter reads the same maps in this process,
// and Go ends a process that reads a map while somebody writes to it. So this controller gets copies. Its lists it copies itself.

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
