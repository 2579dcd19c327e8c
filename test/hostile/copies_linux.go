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

// copyAttacks hold up copies of hostile volumes.
var copyAttacks = map[string]func(o options) attack{
	// A lease makes an open for reading wait.
	"leases on files": func(options) attack {
		return attack{kind: directory, arm: attackWith("leases", 200), reason: "CopyFailed"}
	},
	"trees that are too deep": func(o options) attack {
		return attack{kind: directory, arm: attackWith("deep", o.levels), reason: "CopyFailed"}
	},
	"trees that are nearly too deep": func(options) attack {
		return attack{kind: directory, arm: attackWith("deep", 16000)}
	},
	// A write that does not end holds the lock of its file.
	"writes that do not end, in directories": func(options) attack {
		return attack{kind: directory, arm: (*volume).stall, reason: "CopyStalled"}
	},
	// And its filesystem cannot be frozen.
	"writes that do not end, in images": func(options) attack {
		return attack{kind: image, arm: (*volume).stall, reason: "FilesystemStalled"}
	},
}

// attackWith returns a function that starts an attacker in a volume.
func attackWith(what string, n int) func(v *volume) (end func(), err error) {
	return func(v *volume) (func(), error) { return v.attacked(what, fmt.Sprint(n)) }
}

// attacked starts an attacker in a volume, which its pod may write to.
func (v *volume) attacked(what, arg string) (end func(), err error) {
	if err := os.Chmod(v.target, 0o777); err != nil { // as fsGroup or an init container does
		return nil, err
	}
	a, err := newAttacker(what, v.target, arg)
	if err != nil {
		return nil, err
	}
	return a.end, nil
}

// stall starts a process that hangs in a write to a file of the volume.
func (v *volume) stall() (end func(), err error) {
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

// end ends volumes and the driver, and makes sure that nothing is left. Snapshots may be completed
// long after their callers have given up.
func (w *world) end(ctx context.Context, all []*volume) error {
	if err := ended(ctx, all); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		left, err := w.left()
		if err == nil && len(left) == 0 {
			_, err := w.stop()
			return err
		}
		if err := errors.Join(err, w.deleteSnapshots(ctx)); err != nil {
			return err
		}
		select {
		case <-limited.Done():
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// deleteSnapshots deletes all snapshots.
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

// left returns the remains of volumes: entries below the root, mounts and loop devices.
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
