package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Paths as the kubelet sends them: staging paths have no drive.
const (
	staging      = `\causeway-test\kubelet\plugins\kubernetes.io\csi\hostpath.csi.causeway.dev\0\globalmount`
	target       = `c:\causeway-test\kubelet\pods\0\volumes\kubernetes.io~csi\pv\mount`
	targetOnC    = kubelet + `\pods\0\volumes\kubernetes.io~csi\pv\mount`
	stagingOnC   = `C:` + staging
	mebibyte     = 1 << 20
	volumeName   = "pvc-1"
	restoredName = "pvc-2"
	content      = "written by a pod"
)

// journey is the life of a volume and of a copy of it, with a killed driver in between.
type journey struct {
	*server
	ctx   context.Context
	step  string
	steps int

	volume, snapshot, restored string // IDs
}

// run takes all steps.
func (j *journey) run() error {
	for _, s := range []struct {
		name string
		run  func() error
	}{
		{"create a volume, stage and publish it", j.publish},
		{"write through the target path, and read in the volume", j.write},
		{"kill and restart the driver", j.restart},
		{"find records and links again", j.repeat},
		{"ask for statistics", j.stats},
		{"refuse to delete a volume in use", j.refuse},
		{"take a snapshot and restore it", j.restore},
		{"unpublish and unstage", j.unpublish},
		{"delete all", j.delete},
	} {
		j.step = s.name
		if err := s.run(); err != nil {
			return err
		}
		j.steps++
	}
	return nil
}

// writer is the volume capability of the journey.
func writer() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

// create creates a volume, from a snapshot if source is not "", and returns its ID.
func (j *journey) create(name, source string) (string, error) {
	req := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: mebibyte},
		VolumeCapabilities: []*csi.VolumeCapability{writer()}}
	if source != "" {
		req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: source}}}
	}
	resp, err := j.CreateVolume(j.ctx, req)
	return resp.GetVolume().GetVolumeId(), err
}

func (j *journey) publish() (err error) {
	if j.volume, err = j.create(volumeName, ""); err != nil {
		return err
	}
	// The kubelet makes the staging path, and of the target path the parent only.
	for _, dir := range []string{j.linux(stagingOnC), filepath.Dir(j.linux(targetOnC))} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	if err := j.mount(); err != nil {
		return err
	}
	return errors.Join(j.wantLink(stagingOnC), j.wantLink(targetOnC))
}

// mount stages and publishes the volume.
func (j *journey) mount() error {
	if _, err := j.NodeStageVolume(j.ctx, &csi.NodeStageVolumeRequest{VolumeId: j.volume, StagingTargetPath: staging,
		VolumeCapability: writer()}); err != nil {
		return err
	}
	_, err := j.NodePublishVolume(j.ctx, &csi.NodePublishVolumeRequest{VolumeId: j.volume, StagingTargetPath: staging,
		TargetPath: target, VolumeCapability: writer()})
	return err
}

// data returns the directory of a volume's data, outside of Wine.
func (j *journey) data(id string) string {
	return filepath.Join(j.linux(root), "volumes", id, "data")
}

// wantLink returns an error unless a link that leads to the data is at a path.
func (j *journey) wantLink(path string) error {
	link, err := os.Lstat(j.linux(path))
	if err != nil {
		return err
	}
	to, err := os.Stat(j.linux(path))
	if err != nil {
		return err
	}
	data, err := os.Stat(j.data(j.volume))
	if err != nil {
		return err
	}
	if link.Mode().Type() != fs.ModeSymlink || !os.SameFile(to, data) {
		return fmt.Errorf("%s is %v, want a link to the volume", path, link.Mode())
	}
	return nil
}

func (j *journey) write() error {
	if err := os.WriteFile(filepath.Join(j.linux(targetOnC), "file"), []byte(content), 0o600); err != nil {
		return err
	}
	return j.wantContent(j.volume)
}

// wantContent returns an error unless the file is in a volume.
func (j *journey) wantContent(id string) error {
	got, err := os.ReadFile(filepath.Join(j.data(id), "file"))
	if err == nil && string(got) != content {
		err = fmt.Errorf("the file has %q, want %q", got, content)
	}
	return err
}

func (j *journey) restart() error {
	j.kill()
	return j.start(j.ctx)
}

func (j *journey) repeat() error {
	if err := j.mount(); err != nil {
		return err
	}
	id, err := j.create(volumeName, "")
	if err == nil && id != j.volume {
		err = fmt.Errorf("the volume is %q now, and was %q", id, j.volume)
	}
	return errors.Join(err, j.wantLink(stagingOnC), j.wantLink(targetOnC), j.wantContent(j.volume))
}

func (j *journey) stats() error {
	resp, err := j.NodeGetVolumeStats(j.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: j.volume, VolumePath: target,
		StagingTargetPath: staging})
	if err != nil {
		return err
	}
	for _, u := range resp.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES && u.GetTotal() > 0 && u.GetAvailable() > 0 {
			return nil
		}
	}
	return fmt.Errorf("got %v, want bytes", resp.GetUsage())
}

func (j *journey) refuse() error {
	_, err := j.DeleteVolume(j.ctx, &csi.DeleteVolumeRequest{VolumeId: j.volume})
	if got := status.Code(err); got != codes.FailedPrecondition {
		return fmt.Errorf("DeleteVolume: got %s, %w, want FailedPrecondition", got, err)
	}
	return j.wantContent(j.volume)
}

func (j *journey) restore() error {
	resp, err := j.CreateSnapshot(j.ctx, &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: j.volume})
	if err != nil {
		return err
	}
	j.snapshot = resp.GetSnapshot().GetSnapshotId()
	// The volume changes, and the snapshot does not.
	file := filepath.Join(j.linux(targetOnC), "file")
	if err := os.WriteFile(file, []byte("later"), 0o600); err != nil {
		return err
	}
	if j.restored, err = j.create(restoredName, j.snapshot); err != nil {
		return err
	}
	return j.wantContent(j.restored)
}

func (j *journey) unpublish() error {
	for range 2 { // the kubelet repeats
		if _, err := j.NodeUnpublishVolume(j.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: j.volume,
			TargetPath: target}); err != nil {
			return err
		}
		if _, err := j.NodeUnstageVolume(j.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: j.volume,
			StagingTargetPath: staging}); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(j.linux(targetOnC)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the target path: %w, want none", err)
	}
	// The kubelet removes the staging path.
	return os.Remove(j.linux(stagingOnC))
}

func (j *journey) delete() error {
	_, err := j.DeleteSnapshot(j.ctx, &csi.DeleteSnapshotRequest{SnapshotId: j.snapshot})
	for _, id := range []string{j.volume, j.restored} {
		_, failed := j.DeleteVolume(j.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return err
	}
	return j.wantNothing()
}

// wantNothing returns an error if a volume, snapshot or group is left.
func (s *server) wantNothing() error {
	for _, dir := range []string{"volumes", "snapshots", "groups"} {
		left, err := os.ReadDir(filepath.Join(s.linux(root), dir))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("left in %s: %v, %w", dir, left, err)
		}
	}
	return nil
}
