package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/test/figures"
)

// hostileVolumes is the number of hostile volumes of each class.
const hostileVolumes = 4

// lap takes a volume through its life and times each call.
func (w *world) lap(ctx context.Context, watch figures.Stopwatch, k kind) error {
	v, restored := w.newVolume("innocent", k), w.newVolume("innocent", k)
	snapshot := ""
	steps := []struct {
		name string
		call func() error
	}{
		{"CreateVolume", func() error { return v.create(ctx, nil) }},
		{"NodeStageVolume", func() error { return v.stage(ctx) }},
		{"NodePublishVolume", func() error { return v.publish(ctx) }},
		{"NodeGetVolumeStats", func() error {
			_, err := w.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.target})
			return err
		}},
		{"NodeGetVolumeHealth", func() error { _, err := v.health(ctx); return err }},
		{"CreateSnapshot", func() (err error) { snapshot, err = v.snapshot(ctx, "of-"+v.name); return err }},
		{"CreateVolume from it", func() error {
			return restored.create(ctx, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
			}})
		}},
		{"DeleteVolume of that", func() error { return restored.delete(ctx) }},
		{"DeleteSnapshot", func() error { return v.deleteSnapshot(ctx, snapshot) }},
		{"NodeUnpublishVolume", func() error { return v.unpublish(ctx) }},
		{"NodeUnstageVolume", func() error { return v.unstage(ctx) }},
		{"DeleteVolume", func() error { return v.delete(ctx) }},
	}
	for _, s := range steps {
		if err := watch.Time(string(k)+": "+s.name, func() error { return answered(ctx, s.name, s.call) }); err != nil {
			return err
		}
	}
	return nil
}

// answered repeats a call for which a loop device does not answer, as a CO does: on a loaded
// machine the device may be that of another test. It prints the repetitions.
func answered(ctx context.Context, name string, call func() error) error {
	err := call()
	for n := 1; err != nil && strings.Contains(err.Error(), mounter.ErrNoAnswer.Error()) && n <= 30; n++ {
		fmt.Printf("  %s, call %d: %v\n", name, n, err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
		err = call()
	}
	return err
}

// laps takes innocent volumes of both kinds through their lives, four times a round and at least
// for a time.
func (w *world) laps(ctx context.Context, rounds int, least time.Duration) (figures.Stopwatch, error) {
	watch := figures.Stopwatch{}
	for n, start := 0, time.Now(); n < 4*rounds || time.Since(start) < least; n++ {
		for _, k := range []kind{directory, image} {
			if err := w.lap(ctx, watch, k); err != nil {
				return watch, fmt.Errorf("an innocent volume: %w", err)
			}
		}
	}
	return watch, nil
}

// pressure makes snapshots of hostile volumes, again and again, until end is called. end returns
// how often each outcome came.
func (w *world) pressure(ctx context.Context, bad []*volume) (end func() map[string]int) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[string]int{}
	for _, v := range bad {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				outcome := v.attempt(ctx, fmt.Sprintf("%s-%d", v.name, n))
				mu.Lock()
				outcomes[outcome]++
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(backoff):
				}
			}
		})
	}
	return func() map[string]int {
		cancel()
		wg.Wait()
		return outcomes
	}
}

// backoff is the pause between two snapshots of a hostile volume: the shortest of a sidecar.
const backoff = time.Second

// attempt makes a snapshot of a hostile volume and deletes it.
func (v *volume) attempt(ctx context.Context, name string) string {
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	id, err := v.snapshot(limited, name)
	if err == nil {
		v.deleteSnapshot(ctx, id)
	}
	return status.Code(err).String()
}

// suffer measures the effect of armed hostile volumes on innocent volumes, then SIGTERM and the
// start of a successor.
func (w *world) suffer(ctx context.Context, b *bench, before figures.Stopwatch, bad []*volume) error {
	end := w.pressure(ctx, bad)
	during, err := w.laps(ctx, b.rounds, b.least)
	outcomes := end()
	if len(outcomes) > 0 {
		fmt.Printf("  hostile snapshots: %v\n", outcomes)
	}
	if err != nil {
		return err
	}
	b.compare(before, during)
	return w.succeed(ctx, b)
}

// diagnosed makes snapshots of hostile volumes until the health of each tells why that fails.
func (w *world) diagnosed(ctx context.Context, bad []*volume, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	end := w.pressure(ctx, bad)
	defer end()
	start := time.Now()
	for _, v := range bad {
		for told := false; !told; {
			reasons, err := v.health(ctx)
			if err != nil {
				return fmt.Errorf("health of %s: %w", v.name, err)
			}
			told = slices.Contains(reasons, want)
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Printf("  health of %s after %.0f s of snapshots: %s\n", v.name, time.Since(start).Seconds(), want)
	}
	return nil
}

// compare prints the medians of each call before and during an attack.
func (b *bench) compare(before, during figures.Stopwatch) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		was, is := before.P50(name), during.P50(name)
		b.row(fmt.Sprintf("%s %.0f µs, was %.0f", name, is, was), is/was, "times", 1.5)
	}
}

// succeed ends the driver while hostile volumes are armed, and starts and uses the next driver.
func (w *world) succeed(ctx context.Context, b *bench) error {
	took, err := w.stop()
	if err != nil {
		return fmt.Errorf("SIGTERM: %w", err)
	}
	b.row("SIGTERM until the driver has ended, with a drain timeout of 5 s", figures.Micro(took)/1000, "ms", 6000)
	start := time.Now()
	if err := w.start(ctx); err != nil {
		return err
	}
	v := w.newVolume("innocent", directory)
	if err := v.begun(ctx); err != nil {
		return fmt.Errorf("the next driver: %w", err)
	}
	b.row("start of the next driver until a pod has a volume", time.Since(start).Seconds(), "s", 5)
	return ended(ctx, []*volume{v})
}

// attack is a class of attacks on copies.
type attack struct {
	kind kind // of the hostile volumes
	arm  func(v *volume) (disarm func(), err error)
	// reason is the reason of the condition that NodeGetVolumeHealth reports. "": the copies
	// succeed.
	reason string
}

// run measures innocent volumes alone, arms hostile volumes, measures again, disarms them, and
// verifies that all of them can be removed.
func (a attack) run(ctx context.Context, b *bench) (err error) {
	w, err := newWorld(ctx, b, "xfs")
	if err != nil {
		return err
	}
	defer w.kill()
	if _, err := w.laps(ctx, 1, 0); err != nil { // warm
		return err
	}
	before, err := w.laps(ctx, b.rounds, 0)
	if err != nil {
		return err
	}
	bad, err := w.made(ctx, hostileVolumes, "hostile", a.kind)
	if err != nil {
		return err
	}
	disarm, err := a.armed(bad)
	defer disarm()
	if err == nil {
		err = w.suffer(ctx, b, before, bad)
	}
	switch {
	case err != nil:
	case a.reason != "":
		err = w.diagnosed(ctx, bad, a.reason)
	default:
		err = retried(ctx, func(ctx context.Context) error { _, err := bad[0].snapshot(ctx, "succeeds"); return err })
	}
	if err != nil {
		return fmt.Errorf("%w; the log ends with %s", err, w.tail())
	}
	disarm()
	return w.end(ctx, bad)
}

// armed arms volumes. The caller calls disarm, also after an error.
func (a attack) armed(all []*volume) (disarm func(), err error) {
	var disarms []func()
	disarm = sync.OnceFunc(func() {
		for _, d := range disarms {
			d()
		}
	})
	for _, v := range all {
		d, err := a.arm(v)
		if err != nil {
			return disarm, err
		}
		disarms = append(disarms, d)
	}
	return disarm, nil
}
