package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/internal/hang"
)

// leases: a pod holds write leases on its files, which makes an open for reading wait.
func leases(ctx context.Context, b *bench) error {
	return withHostile(ctx, b, "xfs", false, func(v *volume) (func(), error) { return v.attacked("leases", "200") })
}

// deepTrees: a pod makes trees of very many levels.
func deepTrees(ctx context.Context, b *bench) error {
	return withHostile(ctx, b, "xfs", false, func(v *volume) (func(), error) { return v.attacked("deep", fmt.Sprint(b.levels)) })
}

// attacked starts an attacker in a volume, which its pod may write to.
func (v *volume) attacked(what, arg string) (end func(), err error) {
	if err := os.Chmod(v.target, 0o777); err != nil { // as fsGroup or an init container does
		return nil, err
	}
	a, err := attack(what, v.target, arg)
	if err != nil {
		return nil, err
	}
	return a.end, nil
}

// hungDirectories: a write that does not end holds the inode lock of a file.
func hungDirectories(ctx context.Context, b *bench) error {
	return withHostile(ctx, b, "xfs", false, (*volume).hung)
}

// hungImages: a write that does not end keeps a filesystem from being frozen.
func hungImages(ctx context.Context, b *bench) error {
	return withHostile(ctx, b, "xfs", true, (*volume).hung)
}

func (v *volume) hung() (end func(), err error) {
	file := filepath.Join(v.target, "hung")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil { // a copy of an empty file needs no lock
		return nil, err
	}
	p, err := hang.Start("write", file)
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}

// deleteSnapshots deletes those that were completed after their callers had given up.
func (w *world) deleteSnapshots(ctx context.Context) error {
	return retried(ctx, func(ctx context.Context) error {
		resp, err := w.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
		for _, e := range resp.GetEntries() {
			_, failed := w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: e.GetSnapshot().GetSnapshotId()})
			err = cmp.Or(err, failed)
		}
		return err
	})
}

// clean makes sure that nothing is left of any volume.
func (w *world) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		left, err := w.left()
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// left returns what is left of volumes: entries below the root, mounts and loop devices.
func (w *world) left() (all []string, err error) {
	for _, dir := range []string{"volumes", "snapshots", "staging", "trash"} {
		names, err := os.ReadDir(filepath.Join(w.root(), dir))
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			all = append(all, filepath.Join(dir, n.Name()))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, w.dir) {
			all = append(all, "mount "+at)
		}
	}
	devices, failed := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range devices {
		if name, _ := os.ReadFile(file); strings.HasPrefix(string(name), w.dir) {
			all = append(all, "device of "+strings.TrimSpace(string(name)))
		}
	}
	return all, errors.Join(err, failed)
}
