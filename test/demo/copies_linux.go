package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// aside calls do while the volume is unused, if it cannot be copied in use.
func (a *act) aside(ctx context.Context, do func() error) error {
	if a.reflinks != "" {
		return do()
	}
	if err := a.unmount(ctx); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	_, err := a.mount(ctx)
	return err
}

func (a *act) snapshot(ctx context.Context) (string, error) {
	err := a.aside(ctx, func() error {
		resp, err := a.controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			Name: fmt.Sprint("demo-", len(a.snapshots)), SourceVolumeId: a.id,
		})
		a.snapshots = append(a.snapshots, resp.GetSnapshot().GetSnapshotId())
		return err
	})
	return a.snapshots[len(a.snapshots)-1], err
}

func (a *act) change(context.Context) (string, error) {
	f, err := os.OpenFile(filepath.Join(a.target, "kept"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString("changed")
	return "7 bytes", errors.Join(err, f.Sync(), f.Close())
}

// changes asks which blocks of the image are different.
func (a *act) changes(ctx context.Context) (string, error) {
	stream, err := a.metadata.GetMetadataDelta(ctx,
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: a.snapshots[0], TargetSnapshotId: a.snapshots[1]})
	if err != nil {
		return "", err
	}
	var ranges int
	var changed, all int64
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		all = resp.GetVolumeCapacityBytes()
		for _, r := range resp.GetBlockMetadata() {
			ranges, changed = ranges+1, changed+r.GetSizeBytes()
		}
	}
	if changed == 0 || changed == all {
		return "", fmt.Errorf("%d of %d bytes have changed", changed, all)
	}
	return fmt.Sprintf("%d ranges, %d KiB of %d MiB", ranges, changed>>10, all/mib), nil
}

func (a *act) firstSnapshot() *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: a.snapshots[0]},
	}}
}

func (a *act) volume() *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: a.id},
	}}
}

// createFrom makes a volume from a source.
func (a *act) createFrom(ctx context.Context, source *csi.VolumeContentSource) (id string, err error) {
	return a.createVolume(ctx, nil, source)
}

// clone makes c from a.
func (a *act) clone(ctx context.Context, c *act) (id string, err error) {
	err = a.aside(ctx, func() error {
		id, err = c.createFrom(ctx, a.volume())
		return err
	})
	return id, err
}

// find makes sure that the volume has the file.
func (a *act) find(ctx context.Context, want string) (string, error) {
	if _, err := a.mount(ctx); err != nil {
		return "", err
	}
	got, err := os.ReadFile(filepath.Join(a.target, "kept"))
	if err != nil || string(got) != want {
		return "", fmt.Errorf("the file holds %q: %w", got, err)
	}
	return fmt.Sprintf("%q, at %s", got, a.target), nil
}

func (a *act) deleteSnapshots(ctx context.Context) (string, error) {
	for _, id := range a.snapshots {
		if _, err := a.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
			return "", err
		}
	}
	return "their volume was gone before", nil
}
