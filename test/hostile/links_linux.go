package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/causeway-csi/causeway/test/figures"
)

// linkRaces: a link takes the place of a target path while a volume is published there. No mount
// may appear outside the kubelet's directory, and nothing may be left.
func linkRaces(ctx context.Context, b *bench) error {
	w, err := newWorld(ctx, b, "xfs")
	if err != nil {
		return err
	}
	defer func() { w.cmd.Process.Kill() }()
	var volumes []*volume
	for _, image := range []bool{false, true} {
		v := w.newVolume("raced", image)
		if err := errors.Join(v.create(ctx, nil)); err != nil {
			return err
		}
		if err := v.stage(ctx); err != nil {
			return err
		}
		volumes = append(volumes, v)
	}
	outside := filepath.Join(w.dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		return err
	}
	published, refused := 0, 0
	for i := range b.races {
		v := volumes[i%len(volumes)]
		err := v.raced(ctx, outside)
		if err == nil {
			published++
		} else {
			refused++
		}
		if escaped, err := mountsBelow(outside); err != nil || len(escaped) > 0 {
			return errors.Join(err, fmt.Errorf("race %d: mounts outside the kubelet's directory: %v", i, escaped))
		}
		if err := retried(ctx, v.unpublish); err != nil {
			return fmt.Errorf("race %d: %w", i, err)
		}
	}
	fmt.Printf("  %d publishes raced by a link: %d succeeded, %d were refused, none escaped\n", b.races, published, refused)
	for _, v := range volumes {
		if err := errors.Join(v.unstage(ctx), v.delete(ctx)); err != nil {
			return err
		}
	}
	if err := w.clean(ctx); err != nil {
		return err
	}
	took, err := w.stop()
	figures.Row("SIGTERM until the driver has ended", took.Seconds(), "s")
	return err
}

// raced publishes a volume while its target path becomes a link to outside and back.
func (v *volume) raced(ctx context.Context, outside string) error {
	stop := make(chan struct{})
	var racer sync.WaitGroup
	racer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				os.Remove(v.target) // fails where a volume is mounted
				os.Symlink(outside, v.target)
				os.Remove(v.target)
				os.Mkdir(v.target, 0o755)
			}
		}
	})
	err := v.publish(ctx)
	close(stop)
	racer.Wait()
	if info, failed := os.Lstat(v.target); failed == nil && info.Mode()&os.ModeSymlink != 0 {
		err = errors.Join(err, os.Remove(v.target))
	}
	return err
}

func mountsBelow(dir string) (paths []string, err error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	return paths, err
}
