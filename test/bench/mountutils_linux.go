package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
	"github.com/causeway-csi/causeway/test/figures"
)

// Names of the timed operations. Each is measured once with pkg/mounter and once with mount-utils.
const (
	bind        = "bind mount"
	isMounted   = "is it a mount point: yes"
	notMounted  = "is it a mount point: no"
	unmount     = "unmount"
	list        = "list all mounts"
	ours        = "pkg/mounter"
	theirs      = "mount-utils"
	utilsRounds = 100 // mounts by each library in each round
)

// besideMountUtils measures pkg/mounter beside k8s.io/mount-utils: the same bind mount with the
// same options, on a tmpfs, in this process, without gRPC. The two take turns, mount by mount.
func besideMountUtils(ctx context.Context, dir, _ string, rounds int) error {
	pair, err := newPair(filepath.Join(dir, "mount-utils"))
	if err != nil {
		return err
	}
	f := &filler{dir: filepath.Join(dir, "utils-filler")}
	results := map[int][]figures.Stopwatch{}
	for range rounds {
		for _, mounts := range []int{few, many} {
			if err := f.fill(mounts); err != nil {
				return err
			}
			w, err := pair.lap(ctx)
			if err != nil {
				return err
			}
			results[mounts] = append(results[mounts], w)
		}
	}
	reportPair(results)
	return f.fill(0)
}

// pair is a Mounter and a mount-utils Interface that mount the same directory.
type pair struct {
	ours                   mounter.Mounter
	theirs                 mountutils.Interface
	mount                  mounter.Mount
	options                []string // of mount-utils, with the same effect as mount
	ourTarget, theirTarget string
	empty                  string // a directory at which nothing is mounted
}

// newPair makes the directories in dir, which is on a tmpfs of its own, so that the disk does not
// count.
func newPair(dir string) (*pair, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		return nil, err
	}
	kubelet, source := filepath.Join(dir, "kubelet"), filepath.Join(dir, "source")
	p := &pair{
		theirs:  mountutils.New(""),
		mount:   mounter.Mount{Kind: mounter.Directory, Source: source},
		options: []string{"bind", "nosuid", "nodev"}, ourTarget: filepath.Join(kubelet, "ours"),
		theirTarget: filepath.Join(kubelet, "theirs"), empty: filepath.Join(kubelet, "empty"),
	}
	for _, d := range []string{source, p.ourTarget, p.theirTarget, p.empty} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, err
		}
	}
	var err error
	p.ours, err = host.New(kubelet, filepath.Join(dir, "state"))
	return p, err
}

// lap measures a round. The first library changes from mount to mount.
func (p *pair) lap(ctx context.Context) (figures.Stopwatch, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as measureLap
	w := figures.Stopwatch{}
	for i := range utilsRounds {
		inTurn := func(name string, us, them func() error) error {
			calls := []func() error{func() error { return w.Time(name+ours, us) },
				func() error { return w.Time(name+theirs, them) }}
			return errors.Join(calls[i%2](), calls[1-i%2]())
		}
		err := errors.Join(
			inTurn(bind,
				func() error { return p.ours.Mount(ctx, p.mount, p.ourTarget) },
				func() error { return p.theirs.Mount(p.mount.Source, p.theirTarget, "", p.options) }),
			p.weLook(ctx, true), p.theyLook(true), // not timed: after mount(8) the processor's caches are cold
			inTurn(isMounted, func() error { return p.weLook(ctx, true) }, func() error { return p.theyLook(true) }),
			inTurn(notMounted, func() error { return p.weLook(ctx, false) }, func() error { return p.theyLook(false) }),
			w.Time(list+theirs, func() error { _, err := p.theirs.List(); return err }),
			inTurn(unmount,
				func() error { return p.ours.Unmount(ctx, p.ourTarget) },
				func() error { return p.theirs.Unmount(p.theirTarget) }))
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

// weLook asks pkg/mounter whether its target, or the empty directory, is a mount point.
func (p *pair) weLook(ctx context.Context, mounted bool) error {
	got, err := p.ours.Occupied(ctx, p.at(p.ourTarget, mounted))
	return expect(got, err, mounted)
}

// theyLook asks mount-utils.
func (p *pair) theyLook(mounted bool) error {
	got, err := p.theirs.IsMountPoint(p.at(p.theirTarget, mounted))
	return expect(got, err, mounted)
}

func (p *pair) at(target string, mounted bool) string {
	if mounted {
		return target
	}
	return p.empty
}

// expect returns an error unless a look gave the answer that is right.
func expect(got bool, err error, want bool) error {
	if err == nil && got != want {
		err = fmt.Errorf("mount point: got %t, want %t", got, want)
	}
	return err
}

// reportPair prints the medians, and how many times longer mount-utils takes.
func reportPair(results map[int][]figures.Stopwatch) {
	for _, mounts := range []int{few, many} {
		p50 := func(name string) float64 {
			return figures.Median(results[mounts], func(w figures.Stopwatch) float64 { return w.P50(name) })
		}
		for _, what := range []string{bind, isMounted, notMounted, unmount} {
			at := fmt.Sprintf("%s (%d mounts)", what, mounts)
			figures.Row(at+", "+ours, p50(what+ours), "µs")
			figures.Row(at+", "+theirs, p50(what+theirs), "µs")
			ratio := figures.Median(results[mounts],
				func(w figures.Stopwatch) float64 { return w.P50(what+theirs) / w.P50(what+ours) })
			figures.Row(what+", mount-utils to pkg/mounter", ratio, "")
		}
		figures.Row(fmt.Sprintf("%s (%d mounts), %s", list, mounts, theirs), p50(list+theirs), "µs")
	}
}
