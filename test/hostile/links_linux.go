package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/causeway-csi/causeway/test/figures"
)

// race is a call that mounts at a path, which an attacker replaces by a link meanwhile.
type race struct {
	title      string
	path       string
	file       bool // the driver makes a file there, not a directory
	call, undo func(ctx context.Context) error
}

// races returns the races of all mounts that the driver makes, with the volumes that they need.
func (w *world) races(ctx context.Context) (all []race, volumes []*volume, err error) {
	for _, k := range []kind{directory, image, device} {
		staged, published := w.newVolume("staged", k), w.newVolume("published", k)
		for _, v := range []*volume{staged, published} {
			if err := v.create(ctx, nil); err != nil {
				return nil, nil, err
			}
			if err := v.stage(ctx); err != nil { // makes the path for the first race, too
				return nil, nil, err
			}
		}
		if err := staged.unstage(ctx); err != nil {
			return nil, nil, err
		}
		all = append(all,
			race{"staging a " + string(k), staged.staging, false, staged.stage, staged.unstage},
			race{"publishing a " + string(k), published.target, k == device, published.publish, published.unpublish})
		volumes = append(volumes, staged, published)
	}
	for _, k := range []kind{directory, image} {
		v := w.newVolume("inline", k)
		if err := os.MkdirAll(filepath.Dir(v.target), 0o755); err != nil {
			return nil, nil, err
		}
		all = append(all, race{"publishing an inline " + string(k), v.target, false, v.publishInline, v.unpublish})
	}
	return all, volumes, nil
}

// linkRaces: a link takes the place of a path while a volume is mounted there. No mount may appear
// outside the kubelet's directory, and nothing may be left.
func linkRaces(ctx context.Context, b *bench) error {
	w, err := newWorld(ctx, b, "xfs")
	if err != nil {
		return err
	}
	defer w.kill()
	races, volumes, err := w.races(ctx)
	if err != nil {
		return err
	}
	outside := filepath.Join(w.dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(outside, "file"), nil, 0o600); err != nil {
		return err
	}
	for _, r := range races {
		mounted, refused := 0, 0
		for range b.races / len(races) {
			ok, err := r.run(ctx, outside)
			if err != nil {
				return fmt.Errorf("%s: %w; the log ends with %s", r.title, err, w.tail())
			}
			if ok {
				mounted++
			} else {
				refused++
			}
		}
		if mounted == 0 && !b.short {
			return fmt.Errorf("%s: no race was won by the driver, which proves little", r.title)
		}
		fmt.Printf("  %-28s %6d mounted, %6d refused, none escaped\n", r.title, mounted, refused)
	}
	took, err := w.stop() // must not hang, either
	if err != nil {
		return err
	}
	b.row("SIGTERM until the driver has ended", figures.Micro(took)/1000, "ms", 6000)
	if err := w.start(ctx); err != nil {
		return err
	}
	return w.end(ctx, volumes)
}

// run makes the call once while the path becomes a link and back, looks for a mount outside, and
// undoes the call.
func (r race) run(ctx context.Context, outside string) (mounted bool, err error) {
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() { r.swap(outside, stop) })
	failed := r.call(ctx)
	close(stop)
	swapper.Wait()
	escaped, err := mountsBelow(outside)
	if err == nil && len(escaped) > 0 {
		err = fmt.Errorf("mounts outside the kubelet's directory: %v", escaped)
	}
	if err != nil {
		return false, err
	}
	if info, err := os.Lstat(r.path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		if err := os.Remove(r.path); err != nil {
			return false, err
		}
	}
	return failed == nil, retried(ctx, r.undo)
}

// slowest is the longest pause between two swaps: as long as a slow mount takes.
const slowest = 40 * time.Millisecond

// swap puts links in the place of the path until stop is closed. Where a volume is mounted, it
// cannot. The pauses are random, so that over many races the swaps come at each moment of the call.
func (r race) swap(outside string, stop <-chan struct{}) {
	to := outside
	if r.file {
		to = filepath.Join(outside, "file")
	}
	pause := rand.N(slowest)
	for {
		select {
		case <-stop:
			return
		case <-time.After(rand.N(pause + 1)):
		}
		os.Remove(r.path)
		os.Symlink(to, r.path)
		time.Sleep(rand.N(pause/10 + 1))
		os.Remove(r.path)
		if !r.file {
			os.Mkdir(r.path, 0o755)
		}
	}
}

// mountsBelow returns the mounts at a path and below it.
func mountsBelow(path string) (paths []string, err error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	return paths, err
}
