package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const gib = 1 << 30

// use is the volume capability of the demo's pods: many of them, on a single node.
func use() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

// play is the life of a volume.
func (d *demo) play(ctx context.Context) error {
	one, two := filepath.Join(d.kubelet, "pod-one"), filepath.Join(d.kubelet, "pod-two")
	staging := filepath.Join(d.kubelet, "staging")
	if err := os.Mkdir(staging, 0o750); err != nil {
		return err
	}
	var id string
	steps := []struct {
		what string
		do   func() (string, error)
	}{
		{"CreateVolume, 1 GiB for many pods of a node", func() (string, error) {
			v, err := d.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: "demo", CapacityRange: &csi.CapacityRange{RequiredBytes: gib},
				VolumeCapabilities: []*csi.VolumeCapability{use()},
			})
			id = v.GetVolume().GetVolumeId()
			return id, err
		}},
		{"NodeStageVolume", func() (string, error) {
			_, err := d.node.NodeStageVolume(ctx,
				&csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: use()})
			return staging, err
		}},
		{"NodePublishVolume to pod one",
			func() (string, error) { return one, d.publish(ctx, id, staging, one, false) }},
		{"NodePublishVolume to pod two",
			func() (string, error) { return two, d.publish(ctx, id, staging, two, false) }},
		{"pod one writes, pod two reads", func() (string, error) { return share(one, two, "from-one") }},
		{"pod two writes, pod one reads", func() (string, error) { return share(two, one, "from-two") }},
		{"NodeGetVolumeStats", func() (string, error) { return d.stats(ctx, id, one) }},
		{"DeleteVolume while pods use it: refused", func() (string, error) { return d.refusedDelete(ctx, id) }},
		{"NodeUnpublishVolume of pod one", func() (string, error) { return "", d.unpublish(ctx, id, one) }},
		{"NodeUnpublishVolume of pod two", func() (string, error) { return "", d.unpublish(ctx, id, two) }},
		{"NodePublishVolume to pod two, read-only",
			func() (string, error) { return two, d.publish(ctx, id, staging, two, true) }},
		{"pod two reads, and may not write", func() (string, error) { return readOnly(two) }},
		{"NodeUnpublishVolume of pod two", func() (string, error) { return "", d.unpublish(ctx, id, two) }},
		{"NodeUnstageVolume", func() (string, error) {
			_, err := d.node.NodeUnstageVolume(ctx,
				&csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
			return "", err
		}},
		{"DeleteVolume", func() (string, error) {
			_, err := d.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			return "", err
		}},
	}
	for _, s := range steps {
		if err := step(ctx, s.what, s.do); err != nil {
			return err
		}
	}
	return os.Remove(staging)
}

func (d *demo) publish(ctx context.Context, id, staging, target string, readOnly bool) error {
	_, err := d.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: use(), Readonly: readOnly,
	})
	return err
}

func (d *demo) unpublish(ctx context.Context, id, target string) error {
	_, err := d.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	if _, gone := os.Lstat(target); err == nil && !errors.Is(gone, os.ErrNotExist) {
		return fmt.Errorf("%s is there still", target)
	}
	return err
}

// share writes a file through a target and reads it through another target.
func share(writer, reader, name string) (string, error) {
	want := make([]byte, 1<<20)
	rand.Read(want)
	if err := os.WriteFile(filepath.Join(writer, name), want, 0o600); err != nil {
		return "", err
	}
	got, err := os.ReadFile(filepath.Join(reader, name))
	if err != nil {
		return "", err
	}
	if !bytes.Equal(got, want) {
		return "", errors.New("the bytes differ")
	}
	return "1 MiB, byte for byte the same", nil
}

func (d *demo) stats(ctx context.Context, id, path string) (string, error) {
	resp, err := d.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
	if err != nil {
		return "", err
	}
	text := ""
	for _, u := range resp.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			text += fmt.Sprintf("%.1f of %.1f GiB available", float64(u.GetAvailable())/gib, float64(u.GetTotal())/gib)
		} else {
			text += fmt.Sprintf(", %d of %d inodes", u.GetAvailable(), u.GetTotal())
		}
	}
	return text + " (the filesystem's: see docs/reference/limitations.md)", nil
}

func (d *demo) refusedDelete(ctx context.Context, id string) (string, error) {
	_, err := d.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	if err == nil {
		return "", errors.New("a volume in use was deleted")
	}
	if status.Code(err) != codes.FailedPrecondition {
		return "", err
	}
	return "FAILED_PRECONDITION: in use", nil
}

// readOnly makes sure that the kernel lets pods read but not write at a target.
func readOnly(target string) (string, error) {
	if _, err := os.ReadFile(filepath.Join(target, "from-one")); err != nil {
		return "", err
	}
	err := os.WriteFile(filepath.Join(target, "more"), nil, 0o600)
	if !errors.Is(err, syscall.EROFS) {
		return "", fmt.Errorf("a write gave %w, not EROFS", err)
	}
	return "the kernel: read-only file system", nil
}
