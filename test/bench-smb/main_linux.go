// Command bench-smb measures the controller of shares with a private SMB server: volumes that many
// callers create, list and delete, its connections, sessions and memory, and the time until another
// controller serves after the death of the first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/prereq"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/figures"
)

type options struct{ volumes, callers, copies int }

func main() {
	var o options
	flag.IntVar(&o.volumes, "volumes", 2000, "number of volumes")
	flag.IntVar(&o.callers, "callers", 16, "number of calls at the same time")
	flag.IntVar(&o.copies, "copies", 16, "number of volumes that the first controller is creating when it dies")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-smb:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.volumes < 1 || o.callers < 1 || o.copies < 1 {
		return errors.New("-volumes, -callers and -copies must be at least 1")
	}
	if err := prereq.Install(ctx, os.Stderr, "smb"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-benchsmb-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, err := figures.BuildDriver(ctx, dir)
	if err != nil {
		return err
	}
	b := bench{options: o, dir: dir, bin: bin}
	files := filepath.Join(dir, "smb")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	if b.server, err = smbtest.Start(files); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Close()) }()
	return b.run(ctx)
}

// bench is a run with one server.
type bench struct {
	options
	dir, bin string
	server   *smbtest.Server
}

func (b *bench) run(ctx context.Context) error {
	first, err := b.start(ctx, "first")
	if err != nil {
		return err
	}
	defer first.end()
	fmt.Printf("%d volumes, %d callers, one machine, one run\n", b.volumes, b.callers)
	ids, err := b.fill(ctx, first)
	if err != nil {
		return err
	}
	second, err := b.start(ctx, "second")
	if err != nil {
		return err
	}
	defer second.end()
	if err := b.failOver(ctx, first, second); err != nil {
		return err
	}
	deleted, err := b.each(b.volumes, func(i int) error {
		_, err := second.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: ids[i]})
		return err
	})
	if err != nil {
		return err
	}
	figures.Row("DeleteVolume", deleted.PerSecond(), "/s")
	return nil
}

// fill creates and lists the volumes. It returns their IDs.
func (b *bench) fill(ctx context.Context, c *controller) ([]string, error) {
	ids := make([]string, b.volumes)
	created, err := b.each(b.volumes, func(i int) (err error) {
		ids[i], err = b.create(ctx, c, fmt.Sprint("pvc-", i))
		return err
	})
	if err != nil {
		return nil, err
	}
	figures.Row("CreateVolume", created.PerSecond(), "/s")
	figures.Row("CreateVolume, median", figures.Micro(created.Quantile(.5))/1000, "ms")
	figures.Row("CreateVolume, 99 %", figures.Micro(created.Quantile(.99))/1000, "ms")
	if err := b.printConnections(); err != nil {
		return nil, err
	}
	figures.Row("memory (RSS)", float64(figures.Status(c.cmd.Process.Pid, "VmRSS"))/1024, "MiB")
	begin := time.Now()
	listed, err := list(ctx, c)
	if err != nil {
		return nil, err
	}
	if listed != b.volumes {
		return nil, fmt.Errorf("%d volumes are listed, want %d", listed, b.volumes)
	}
	figures.Row("ListVolumes, all, in pages of 500", time.Since(begin).Seconds(), "s")
	figures.Row("peak of memory (RSS)", float64(figures.Status(c.cmd.Process.Pid, "VmHWM"))/1024, "MiB")
	return ids, nil
}

// each makes calls from 0 to n by all callers.
func (b *bench) each(n int, call func(i int) error) (figures.Sample, error) {
	s := figures.Sample{Times: make([]time.Duration, n)}
	next := make(chan int)
	errs := make([]error, b.callers)
	var group sync.WaitGroup
	begin := time.Now()
	for caller := range b.callers {
		group.Go(func() {
			for i := range next {
				start := time.Now()
				errs[caller] = errors.Join(errs[caller], call(i))
				s.Times[i] = time.Since(start)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	s.All = time.Since(begin)
	return s, errors.Join(errs...)
}

// failOver kills the first controller while it creates volumes, and creates them with the second. A
// volume whose marker the first has left is busy until the marker is old.
func (b *bench) failOver(ctx context.Context, first, second *controller) error {
	names, died, err := b.killBusy(ctx, first)
	if err != nil {
		return err
	}
	if _, err := b.create(ctx, second, "after"); err != nil {
		return fmt.Errorf("the second controller: %w", err)
	}
	figures.Row("first volume of another controller after the death of the first", time.Since(died).Seconds(), "s")
	if _, err := b.each(len(names), func(i int) error { return b.createAgain(ctx, second, names[i]) }); err != nil {
		return err
	}
	figures.Row(fmt.Sprintf("the last of %d volumes that the first was creating is complete", len(names)),
		time.Since(died).Seconds(), "s")
	return nil
}

// killBusy kills a controller while it creates volumes. It returns their names, one of each caller:
// each creation has failed at an unknown step. A volume may have its directory, or a marker alone.
func (b *bench) killBusy(ctx context.Context, c *controller) (names []string, died time.Time, err error) {
	names = make([]string, b.copies)
	errs := make([]error, b.copies)
	var killed atomic.Bool
	var group sync.WaitGroup
	for i := range b.copies {
		group.Go(func() {
			for n := 0; ; n++ {
				names[i] = fmt.Sprint("dead-", i, "-", n)
				if _, err := b.create(ctx, c, names[i]); err != nil {
					if !killed.Load() {
						errs[i] = fmt.Errorf("volume %q, before the kill: %w", names[i], err)
					}
					return
				}
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	killed.Store(true)
	err = c.cmd.Process.Kill()
	died = time.Now()
	if err != nil {
		c.conn.Close() // ends the callers
	}
	group.Wait()
	return names, died, errors.Join(err, errors.Join(errs...))
}

// createAgain repeats the creation of a volume as the provisioner does.
func (b *bench) createAgain(ctx context.Context, c *controller, name string) error {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		_, err := b.create(ctx, c, name)
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}

// create returns the ID of a new volume.
func (b *bench) create(ctx context.Context, c *controller, name string) (string, error) {
	r, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: name,
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
		Parameters:    map[string]string{"source": b.server.Source()},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		}}})
	return r.GetVolume().GetVolumeId(), err
}

// list returns the number of volumes.
func list(ctx context.Context, c *controller) (n int, err error) {
	for token := ""; ; {
		r, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 500, StartingToken: token})
		if err != nil {
			return n, err
		}
		n += len(r.GetEntries())
		if token = r.GetNextToken(); token == "" {
			return n, nil
		}
	}
}

// printConnections prints the numbers of connections and sessions that the server has.
func (b *bench) printConnections() error {
	ports := fmt.Sprintf("( sport = :%d )", b.server.Port)
	out, err := exec.Command("ss", "-Htn", "state", "established", ports).Output()
	if err != nil {
		return fmt.Errorf("ss: %w", err)
	}
	figures.Row("connections with the server", float64(strings.Count(string(out), "\n")), "")
	sessions, err := b.server.Sessions()
	if err != nil {
		return err
	}
	figures.Row("sessions with the server", float64(sessions), "")
	return nil
}

// controller is a driver's process with --mode=controller.
type controller struct {
	csi.ControllerClient
	conn *grpc.ClientConn
	cmd  *exec.Cmd
}

// start starts a controller, and returns when it answers.
func (b *bench) start(ctx context.Context, name string) (*controller, error) {
	dir := filepath.Join(b.dir, name)
	credentials := filepath.Join(dir, "credentials")
	if err := os.MkdirAll(credentials, 0o700); err != nil {
		return nil, err
	}
	shares := fmt.Sprintf("shares:\n- {source: %q, credentials: %q}\n", b.server.Source(), credentials)
	for file, content := range map[string]string{
		filepath.Join(credentials, "username"): b.server.User,
		filepath.Join(credentials, "password"): b.server.Password,
		filepath.Join(dir, "shares.yaml"):      shares,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(b.bin, "--endpoint="+endpoint, "--mode=controller", "--backend=smb",
		"--driver-name=smb.csi.causeway.dev", "--smb-shares="+filepath.Join(dir, "shares.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	c := &controller{csi.NewControllerClient(conn), conn, cmd}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	probe, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		_, err := csi.NewIdentityClient(conn).Probe(probe, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return c, nil
		}
		if probe.Err() != nil {
			said, _ := os.ReadFile(log.Name())
			c.end()
			return nil, fmt.Errorf("the controller does not answer: %w: %s", err, said)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// end kills the controller, if it runs.
func (c *controller) end() {
	c.conn.Close()
	c.cmd.Process.Kill()
	c.cmd.Wait()
}
