package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const mib = 1 << 20

// noImages returns why no image can be mounted here, or "".
func noImages() string {
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || !slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"}) {
		return "only the machine's root has loop devices"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return err.Error()
	}
	for _, program := range []string{"mkfs.ext4", "e2fsck", "resize2fs"} {
		if _, err := exec.LookPath(program); err != nil {
			return err.Error()
		}
	}
	return ""
}

// act is a volume on an image, with the calls for it.
type act struct {
	*demo
	use             *csi.VolumeCapability
	id              string
	staging, target string
	snapshots       []string // IDs
}

// playImages is the second act: an image with a filesystem, which grows, and an image as a block
// device.
func (d *demo) playImages(ctx context.Context) error {
	if why := noImages(); why != "" {
		fmt.Println("  images and block devices are left out:", why)
		return nil
	}
	block := use()
	block.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	a := &act{demo: d, use: use(), staging: filepath.Join(d.kubelet, "image"),
		target: filepath.Join(d.kubelet, "pod-three")}
	b := &act{demo: d, use: block, staging: filepath.Join(d.kubelet, "disk"),
		target: filepath.Join(d.kubelet, "pod-four")}
	r := &act{demo: d, use: use(), staging: filepath.Join(d.kubelet, "restored"),
		target: filepath.Join(d.kubelet, "pod-restored")}
	c := &act{demo: d, use: use(), staging: filepath.Join(d.kubelet, "clone"),
		target: filepath.Join(d.kubelet, "pod-clone")}
	when := ", in use"
	if d.reflinks == "" {
		when = "" // a disk without reflinks copies volumes that are not in use
	}
	steps := []struct {
		what string
		do   func(context.Context) (string, error)
	}{
		{"CreateVolume, an image of 64 MiB with ext4", a.create},
		{"stage and publish it to pod three", a.mount},
		{"pod three writes more than 64 MiB", a.tooMuch},
		{"ControllerExpandVolume to 128 MiB", a.expand},
		{"unpublish and unstage, stage and publish", a.remount},
		{"pod three finds its file, and more room", a.larger},
		{"CreateSnapshot of it" + when, a.snapshot},
		{"pod three changes its file", a.change},
		{"CreateSnapshot, a second one" + when, a.snapshot},
		{"GetMetadataDelta: changed blocks", a.changes},
		{"CreateVolume from the first snapshot",
			func(ctx context.Context) (string, error) { return r.createFrom(ctx, a.firstSnapshot()) }},
		{"publish it beside its source: the old file",
			func(ctx context.Context) (string, error) { return r.find(ctx, "kept") }},
		{"end and delete it", r.end},
		{"CreateVolume, a clone of pod three's" + when,
			func(ctx context.Context) (string, error) { return a.clone(ctx, c) }},
		{"publish it beside its source: the new file",
			func(ctx context.Context) (string, error) { return c.find(ctx, "changed") }},
		{"end and delete it", c.end},
		{"end and delete the source", a.end},
		{"DeleteSnapshot, twice", a.deleteSnapshots},
		{"CreateVolume, an image as a block device", b.create},
		{"stage and publish it to pod four", b.mount},
		{"pod four writes to the device, and reads", b.device},
		{"end and delete it, too", b.end},
	}
	for _, s := range steps {
		if err := step(ctx, s.what, func() (string, error) { return s.do(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *act) create(ctx context.Context) (string, error) {
	return a.createVolume(ctx, &csi.CapacityRange{RequiredBytes: 64 * mib}, nil)
}

func (a *act) createVolume(ctx context.Context, size *csi.CapacityRange,
	source *csi.VolumeContentSource) (string, error) {
	v, err := a.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: a.staging, CapacityRange: size, VolumeContentSource: source,
		VolumeCapabilities: []*csi.VolumeCapability{a.use}, Parameters: map[string]string{"kind": "image"},
	})
	a.id = v.GetVolume().GetVolumeId()
	return a.id, err
}

func (a *act) mount(ctx context.Context) (string, error) {
	_, err := a.node.NodeStageVolume(ctx,
		&csi.NodeStageVolumeRequest{VolumeId: a.id, StagingTargetPath: a.staging, VolumeCapability: a.use})
	if err != nil {
		return "", err
	}
	_, err = a.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: a.id, StagingTargetPath: a.staging, TargetPath: a.target, VolumeCapability: a.use,
	})
	return a.target, err
}

func (a *act) unmount(ctx context.Context) error {
	if err := a.unpublish(ctx, a.id, a.target); err != nil {
		return err
	}
	_, err := a.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: a.id, StagingTargetPath: a.staging})
	return errors.Join(err, os.Remove(a.staging))
}

// tooMuch makes sure that an image keeps its pod to its size.
func (a *act) tooMuch(context.Context) (string, error) {
	if err := os.WriteFile(filepath.Join(a.target, "kept"), []byte("kept"), 0o600); err != nil {
		return "", err
	}
	large := filepath.Join(a.target, "large")
	if err := os.WriteFile(large, make([]byte, 65*mib), 0o600); err == nil {
		return "", errors.New("65 MiB fit into 64")
	}
	return "the kernel: no space left on device", os.Remove(large)
}

func (a *act) expand(ctx context.Context) (string, error) {
	resp, err := a.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: a.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * mib},
	})
	return fmt.Sprintf("%d MiB", resp.GetCapacityBytes()/mib), err
}

func (a *act) remount(ctx context.Context) (string, error) {
	if err := a.unmount(ctx); err != nil {
		return "", err
	}
	return a.mount(ctx)
}

func (a *act) larger(context.Context) (string, error) {
	if got, err := os.ReadFile(filepath.Join(a.target, "kept")); err != nil || string(got) != "kept" {
		return "", fmt.Errorf("the file holds %q: %w", got, err)
	}
	return "65 MiB fit now", os.WriteFile(filepath.Join(a.target, "large"), make([]byte, 65*mib), 0o600)
}

func (a *act) device(context.Context) (string, error) {
	dev, err := os.OpenFile(a.target, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	want, got := bytes.Repeat([]byte("block"), 1000), make([]byte, 5000)
	if _, err := dev.WriteAt(want, mib); err != nil {
		return "", err
	}
	if _, err := dev.ReadAt(got, mib); err != nil || !bytes.Equal(got, want) {
		return "", errors.Join(errors.New("the bytes differ"), err)
	}
	return "5000 bytes, the same", dev.Sync()
}

func (a *act) end(ctx context.Context) (string, error) {
	if err := a.unmount(ctx); err != nil {
		return "", err
	}
	_, err := a.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: a.id})
	return "", err
}
