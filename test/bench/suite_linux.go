package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/test/figures"
)

const (
	few, many = 10, 2000 // mounts on the machine
	perRound  = 200      // calls of a kind in each round
	probes    = 40       // volumes created in each round, among the others
	execs     = 50       // runs of each of the old way's programs in each round
)

// suite measures the figures of docs/reference/benchmarks.md.
func suite(ctx context.Context, rounds int, only string) (err error) {
	dir, err := os.MkdirTemp("", "causeway-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, figures.CleanUp(dir)) }()
	bin, err := figures.BuildDriver(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Printf("medians of %d rounds of %d calls, one machine, one run\n", rounds, perRound)
	for _, part := range []struct {
		title string
		run   func(ctx context.Context, dir, bin string, rounds int) error
	}{
		{"creating among 100 and among 10,000 volumes", creating},
		{"mounting, beside the old way", mounting},
		{"mounting without gRPC, beside mount-utils", besideMountUtils},
		{"eight callers beside one", callers},
		{"memory", memory},
		{"copying a directory, beside tar and cp", copying},
		{"cloning an image, and what has changed in it", cloning},
		{"publishing while an image is copied", meanwhile},
		{"deleting many files", deleting},
	} {
		if !strings.Contains(part.title, only) {
			continue
		}
		fmt.Printf("\n%s\n", part.title)
		if err := part.run(ctx, dir, bin, rounds); err != nil {
			return fmt.Errorf("%s: %w", part.title, err)
		}
	}
	return nil
}

// process is a driver of our own.
type process struct {
	*client
	cmd  *exec.Cmd
	root string
}

// startDriver starts a driver with everything it needs in dir/name. Its root is on the disk; its
// kubelet directory is on a tmpfs if inMemory.
func startDriver(ctx context.Context, dir, bin, name string, inMemory bool) (*process, error) {
	dir = filepath.Join(dir, name)
	p := &process{root: filepath.Join(dir, "root")}
	kubelet := filepath.Join(dir, "kubelet")
	if err := errors.Join(os.MkdirAll(p.root, 0o700), os.MkdirAll(kubelet, 0o750)); err != nil {
		return nil, err
	}
	if inMemory {
		if err := unix.Mount("none", kubelet, "tmpfs", 0, ""); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	p.cmd = exec.Command(bin, "--endpoint="+endpoint, "--root="+p.root, "--init-root", "--kubelet-dir="+kubelet,
		"--state-dir="+filepath.Join(dir, "state"), "--node-id=bench")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if p.client, err = dial(ctx, endpoint, filepath.Join(kubelet, "pods")); err != nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		return nil, err
	}
	for {
		resp, err := p.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && resp.GetReady().GetValue() {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, errors.Join(err, p.stop())
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *process) stop() error {
	return errors.Join(p.conn.Close(), p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Wait())
}

// made returns n new volumes, staged if asked for.
func (p *process) made(ctx context.Context, n int, prefix string, staged bool) ([]*volume, error) {
	vs, err := p.volumes(n, prefix)
	if err != nil {
		return nil, err
	}
	_, err = each(ctx, n, 8, func(ctx context.Context, i int) error {
		if err := vs[i].create(ctx); err != nil || !staged {
			return err
		}
		return vs[i].stage(ctx)
	})
	return vs, err
}

// filler makes and removes unrelated mounts, so that the machine has a given number of mounts.
type filler struct {
	dir   string
	count int
}

func (f *filler) fill(n int) error {
	if err := os.MkdirAll(filepath.Join(f.dir, "source"), 0o755); err != nil {
		return err
	}
	for ; f.count < n; f.count++ {
		at := f.at(f.count)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(filepath.Join(f.dir, "source"), at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for ; f.count > n; f.count-- {
		if err := unix.Unmount(f.at(f.count-1), 0); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) at(i int) string { return filepath.Join(f.dir, fmt.Sprint(i)) }

// mounting measures publish, unpublish and stats with few and with many mounts, beside the same
// system calls and beside programs. It measures twice, with the kubelet directory in memory and on
// the disk: a publish makes a directory and an unpublish removes it, which the programs do not, and
// which takes time on a disk.
func mounting(ctx context.Context, dir, bin string, rounds int) error {
	f := &filler{dir: filepath.Join(dir, "filler")}
	places := []struct {
		name     string
		inMemory bool
		vs       []*volume
		results  map[int][]lap
	}{{name: "kubelet directory in memory", inMemory: true}, {name: "kubelet directory on the disk"}}
	for i := range places {
		p := &places[i]
		driver, err := startDriver(ctx, dir, bin, fmt.Sprint("mounting-", i), p.inMemory)
		if err != nil {
			return err
		}
		defer driver.stop()
		if p.vs, err = driver.made(ctx, perRound, "m", false); err != nil {
			return err
		}
		p.results = map[int][]lap{}
	}
	for range rounds {
		for _, mounts := range []int{few, many} {
			if err := f.fill(mounts); err != nil {
				return err
			}
			for _, p := range places {
				l, err := measureLap(ctx, p.vs, filepath.Join(dir, "direct"))
				if err != nil {
					return err
				}
				p.results[mounts] = append(p.results[mounts], l)
			}
		}
	}
	for _, p := range places {
		fmt.Printf(" %s\n", p.name)
		reportMounting(p.results)
	}
	return f.fill(0)
}

// lap has the medians of a round, in microseconds.
type lap struct {
	publish, unpublish, stats                float64 // the whole gRPC call
	mount, umount, mkdir, rmdir              float64 // the system calls; the directories are made beside the targets
	execMount, execUmount, execFindmnt, noop float64
}

// measureLap measures each call beside its necessary system call, volume by volume, and then the
// programs. A single caller is a single thread here: the idle threads of this process would disturb
// the measurement.
func measureLap(ctx context.Context, vs []*volume, direct string) (lap, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	source, target := filepath.Join(direct, "source"), filepath.Join(direct, "target")
	if err := errors.Join(os.MkdirAll(source, 0o755), os.MkdirAll(target, 0o755)); err != nil {
		return lap{}, err
	}
	w := figures.Stopwatch{}
	for _, v := range vs {
		beside := v.target + "-beside"
		err := errors.Join(
			v.stage(ctx),
			w.Time("mkdir", func() error { return os.Mkdir(beside, 0o750) }),
			w.Time("publish", func() error { return v.publish(ctx) }),
			w.Time("mount", func() error { return unix.Mount(source, target, "", unix.MS_BIND, "") }),
			w.Time("stats", func() error { return v.stats(ctx) }),
			w.Time("noop", func() error {
				_, err := v.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
				return err
			}),
			w.Time("umount", func() error { return unix.Unmount(target, 0) }),
			w.Time("rmdir", func() error { return unix.Rmdir(beside) }),
			w.Time("unpublish", func() error { return v.unpublish(ctx) }),
			v.unstage(ctx))
		if err != nil {
			return lap{}, err
		}
	}
	for range execs {
		err := errors.Join(
			w.Time("exec mount", exec.Command("mount", "--bind", source, target).Run),
			w.Time("exec findmnt", exec.Command("findmnt", "--mountpoint", target).Run),
			w.Time("exec umount", exec.Command("umount", target).Run))
		if err != nil {
			return lap{}, err
		}
	}
	return lap{
		publish: w.P50("publish"), unpublish: w.P50("unpublish"), stats: w.P50("stats"), noop: w.P50("noop"),
		mount: w.P50("mount"), umount: w.P50("umount"), mkdir: w.P50("mkdir"), rmdir: w.P50("rmdir"),
		execMount: w.P50("exec mount"), execUmount: w.P50("exec umount"), execFindmnt: w.P50("exec findmnt"),
	}, nil
}

func reportMounting(results map[int][]lap) {
	m := func(mounts int, f func(lap) float64) float64 { return figures.Median(results[mounts], f) }
	for _, mounts := range []int{few, many} {
		at := fmt.Sprintf(" (%d mounts)", mounts)
		figures.Row("exec mount --bind"+at, m(mounts, func(l lap) float64 { return l.execMount }), "µs")
		figures.Row("exec umount"+at, m(mounts, func(l lap) float64 { return l.execUmount }), "µs")
		figures.Row("exec findmnt"+at, m(mounts, func(l lap) float64 { return l.execFindmnt }), "µs")
		figures.Row("mount(2)"+at, m(mounts, func(l lap) float64 { return l.mount }), "µs")
		figures.Row("umount2(2)"+at, m(mounts, func(l lap) float64 { return l.umount }), "µs")
		figures.Row("mkdir(2)"+at, m(mounts, func(l lap) float64 { return l.mkdir }), "µs")
		figures.Row("rmdir(2)"+at, m(mounts, func(l lap) float64 { return l.rmdir }), "µs")
		figures.Row("a call that does nothing"+at, m(mounts, func(l lap) float64 { return l.noop }), "µs")
		figures.Row("NodePublishVolume"+at, m(mounts, func(l lap) float64 { return l.publish }), "µs")
		figures.Row("NodeUnpublishVolume"+at, m(mounts, func(l lap) float64 { return l.unpublish }), "µs")
		figures.Row("NodeGetVolumeStats"+at, m(mounts, func(l lap) float64 { return l.stats }), "µs")
		figures.Row("publish, times faster than exec mount",
			m(mounts, func(l lap) float64 { return l.execMount / l.publish }), "", figures.AtLeast(5))
		figures.Row("publish less mkdir(2), times faster than exec mount",
			m(mounts, func(l lap) float64 { return l.execMount / (l.publish - l.mkdir) }), "")
		figures.Row("unpublish, times faster than exec umount",
			m(mounts, func(l lap) float64 { return l.execUmount / l.unpublish }), "", figures.AtLeast(5))
		figures.Row("unpublish less rmdir(2), times faster than exec umount",
			m(mounts, func(l lap) float64 { return l.execUmount / (l.unpublish - l.rmdir) }), "")
		figures.Row("stats, times faster than exec findmnt",
			m(mounts, func(l lap) float64 { return l.execFindmnt / l.stats }), "", figures.AtLeast(10))
	}
	own := func(mounts int) float64 { return m(mounts, func(l lap) float64 { return l.publish - l.mount }) }
	unown := func(mounts int) float64 { return m(mounts, func(l lap) float64 { return l.unpublish - l.umount }) }
	figures.Row(fmt.Sprintf("publish less mount(2), %d mounts to %d", many, few), own(many)/own(few), "",
		figures.AtMost(1.2))
	figures.Row(fmt.Sprintf("unpublish less umount2(2), %d mounts to %d", many, few), unown(many)/unown(few), "",
		figures.AtMost(1.2))
}

// callers compares publishes per second of eight callers with those of a single caller.
func callers(ctx context.Context, dir, bin string, rounds int) (err error) {
	p, err := startDriver(ctx, dir, bin, "callers", true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	vs, err := p.made(ctx, perRound, "c", true)
	if err != nil {
		return err
	}
	rates := map[int][]float64{}
	for range rounds {
		for _, n := range []int{1, 8} {
			s, err := each(ctx, len(vs), n, func(ctx context.Context, i int) error { return vs[i].publish(ctx) })
			if err != nil {
				return err
			}
			rates[n] = append(rates[n], s.PerSecond())
			if _, err := each(ctx, len(vs), n,
				func(ctx context.Context, i int) error { return vs[i].unpublish(ctx) }); err != nil {
				return err
			}
		}
	}
	self := func(f float64) float64 { return f }
	one, eight := figures.Median(rates[1], self), figures.Median(rates[8], self)
	figures.Row("publishes per second, 1 caller", one, "")
	figures.Row("publishes per second, 8 callers", eight, "")
	figures.Row("8 callers to 1", eight/one, "", figures.AtLeast(1.3))
	_, err = each(ctx, len(vs), 8, func(ctx context.Context, i int) error { return vs[i].unstage(ctx) })
	return err
}

// ownDisk mounts a new ext4 at dir/disk and returns that path. If it cannot, it returns dir and
// prints that.
func ownDisk(ctx context.Context, dir string) (string, error) {
	image, disk := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<30),
		os.MkdirAll(disk, 0o755)); err != nil {
		return "", err
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-N", "200000", "-E", "lazy_itable_init=0,lazy_journal_init=0", image},
		{"mount", "-o", "loop", image, disk},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			fmt.Printf("  (not on a filesystem of its own, as root could: %s: %v %.80s)\n", command[0], err, out)
			return dir, nil
		}
	}
	return disk, nil
}

// creating compares CreateVolume on a driver with 100 volumes and on a driver with 10,000, call by
// call in turn, so that variations of the disk affect both. The filesystem is new, and nothing is
// deleted in between: ext4 does not use the inode of a deleted file again for minutes, and looks at
// each of them on the way to a free inode, which after an earlier benchmark is most of the time of
// a create.
func creating(ctx context.Context, dir, bin string, rounds int) (err error) {
	if dir, err = ownDisk(ctx, dir); err != nil {
		return err
	}
	sizes := []int{100, 10000}
	var ps []*process
	defer func() {
		for _, p := range ps {
			err = errors.Join(err, p.stop())
		}
	}()
	for _, n := range sizes {
		p, err := startDriver(ctx, dir, bin, fmt.Sprint("creating-", n), false)
		if err != nil {
			return err
		}
		ps = append(ps, p)
		if _, err := p.made(ctx, n, "filler", false); err != nil {
			return err
		}
	}
	results := make([][]float64, len(ps))
	for round := range rounds {
		samples := make([]figures.Sample, len(ps))
		for i := range probes {
			for n, p := range ps {
				v := &volume{client: p.client, name: fmt.Sprintf("probe-%d-%d", round, i)}
				start := time.Now()
				if err := v.create(ctx); err != nil {
					return err
				}
				samples[n].Times = append(samples[n].Times, time.Since(start))
			}
		}
		for n, s := range samples {
			results[n] = append(results[n], figures.Micro(s.Quantile(.5)))
		}
	}
	self := func(f float64) float64 { return f }
	for n := range ps {
		figures.Row(fmt.Sprintf("CreateVolume, durable, among %d volumes", sizes[n]), figures.Median(results[n], self),
			"µs")
	}
	figures.Row("among 10,000 to among 100", figures.Median(results[1], self)/figures.Median(results[0], self), "",
		figures.AtMost(1.3))
	return nil
}

// memory measures the driver with 1,000 and with 10,000 volumes, when all have been made, staged
// and published, and when it has been started anew and has listed them.
func memory(ctx context.Context, dir, bin string, _ int) error {
	for _, c := range []struct {
		volumes int
		asked   figures.Goal
	}{{1000, figures.Under(25)}, {10000, figures.Under(40)}} {
		name := fmt.Sprint("memory-", c.volumes)
		p, err := startDriver(ctx, dir, bin, name, false)
		if err != nil {
			return err
		}
		vs, err := p.made(ctx, c.volumes, "v", true)
		if err == nil {
			_, err = each(ctx, len(vs), 8, func(ctx context.Context, i int) error { return vs[i].publish(ctx) })
		}
		if err == nil {
			err = p.listAll(ctx)
		}
		if err != nil {
			return errors.Join(err, p.stop())
		}
		figures.Row(fmt.Sprintf("peak RSS, %d volumes made, staged, published and listed", c.volumes),
			float64(p.peakRSS())/1024, "MB", c.asked)
		if err := p.stop(); err != nil {
			return err
		}
		if p, err = startDriver(ctx, dir, bin, name, false); err != nil {
			return err
		}
		if err = p.listAll(ctx); err == nil {
			figures.Row(fmt.Sprintf("peak RSS, %d volumes, started anew and listed", c.volumes),
				float64(p.peakRSS())/1024, "MB", c.asked)
			_, err = each(ctx, len(vs), 8, func(ctx context.Context, i int) error {
				v := *vs[i]
				v.client = p.client
				return errors.Join(v.unpublish(ctx), v.unstage(ctx))
			})
		}
		if err = errors.Join(err, p.stop()); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) listAll(ctx context.Context) error {
	for token := ""; ; {
		page, err := p.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: token})
		if token = page.GetNextToken(); err != nil || token == "" {
			return err
		}
	}
}
