package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// bench is a run of the benchmark.
type bench struct {
	options
	table
	dir      string
	binaries map[string]string // by name
	plane    *rig.Plane        // nil until a part needs it
	driver   *rig.Driver
}

// needsDriver starts the driver.
func (b *bench) needsDriver(context.Context) (err error) {
	if b.driver != nil {
		return nil
	}
	var names []string
	for i := range nodes * b.percent / 100 {
		names = append(names, nodeName(i))
	}
	b.driver, err = rig.NewDriver(b.dir, rig.DriverOptions{Nodes: names, Topology: true})
	return err
}

// needsCluster starts the driver and an API server, and fills that.
func (b *bench) needsCluster(ctx context.Context) error {
	if err := b.needsDriver(ctx); err != nil || b.plane != nil {
		return err
	}
	var err error
	// The binder binds claims. Other controllers would remove unused objects, such as attachments.
	b.plane, err = rig.StartPlane(ctx, controlplane.Options{Log: os.Stderr, Dir: b.dir,
		Controllers:           []string{"persistentvolume-binder-controller", "serviceaccount-controller"},
		ControllerManagerArgs: []string{"--kube-api-qps=5000", "--kube-api-burst=5000"}})
	if err != nil {
		return err
	}
	return b.load(ctx)
}

func (b *bench) close() (err error) {
	if b.plane != nil {
		err = b.plane.Close()
	}
	if b.driver != nil {
		err = errors.Join(err, b.driver.Stop())
	}
	return err
}

// way is a choice of processes that do the same work.
type way struct {
	name     string
	programs []program
}

type program struct {
	binary string
	args   []string
}

// separate is a process for each sidecar, as all drivers are deployed today. limits go to all that
// have a client.
func (b *bench) separate(limits ...string) way {
	w := way{name: "separate"}
	for _, name := range upstreams {
		w.programs = append(w.programs, program{name, append(b.common(), limits...)})
	}
	w.programs = append(w.programs,
		program{nodeOnly, []string{"--controllers=livenessprobe", "--csi-address=" + b.driver.Socket,
			"--livenessprobe-health-port=" + freePort()}})
	return w
}

// four are those with a binary upstream, and the probe that every driver has.
const four = "attacher,provisioner,resizer,snapshotter,livenessprobe"

// combined is a single process for all controllers.
func (b *bench) combined(limits ...string) way { return b.one("combined", four, limits) }

func (b *bench) one(name, controllers string, limits []string) way {
	args := append(b.common(), "--controllers="+controllers, "--livenessprobe-health-port="+freePort())
	return way{name: name, programs: []program{{combined, append(args, limits...)}}}
}

func (b *bench) common() []string {
	return []string{"--kubeconfig=" + b.plane.Kubeconfig(), "--csi-address=" + b.driver.Socket, "--leader-election"}
}

// freePort returns a port of this host that was free a moment ago.
func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0"
	}
	defer l.Close()
	return l.Addr().String()
}

// has reports whether our binary has a controller.
func (b *bench) has(ctx context.Context, controller string) bool {
	help, err := exec.CommandContext(ctx, b.binaries[combined], "help").Output()
	return err == nil && strings.Contains(string(help), controller)
}

// set is a way's processes.
type set struct {
	names     []string
	processes []*rig.Process
}

// start starts a way's processes, in an empty environment. start removes the leases of earlier
// processes, so that no process waits for them.
func (b *bench) start(ctx context.Context, w way) (*set, error) {
	err := b.plane.Kube.CoordinationV1().Leases(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	s := &set{}
	for _, p := range w.programs {
		process, err := rig.StartProcess(b.binaries[p.binary], nil, p.args...)
		if err != nil {
			return nil, errors.Join(err, s.err(), s.kill())
		}
		s.names, s.processes = append(s.names, p.binary), append(s.processes, process)
	}
	return s, nil
}

// err tells which process ended that had no order to end.
func (s *set) err() (err error) {
	for i, p := range s.processes {
		select {
		case <-p.Ended():
			err = errors.Join(err, fmt.Errorf("%s ended: %s", s.names[i], lastOf(p.Log())))
		default:
		}
	}
	return err
}

// stop tells all to end, and returns how long the last took. After ten seconds they are killed.
func (s *set) stop() (time.Duration, error) {
	if err := s.err(); err != nil {
		return 0, errors.Join(err, s.kill())
	}
	start := time.Now()
	for _, p := range s.processes {
		p.Signal(syscall.SIGTERM)
	}
	patience := time.AfterFunc(10*time.Second, func() { s.kill() })
	defer patience.Stop()
	for _, p := range s.processes {
		<-p.Ended()
	}
	return time.Since(start), nil
}

// kill ends processes that still run.
func (s *set) kill() error {
	for _, p := range s.processes {
		p.Signal(syscall.SIGKILL) // an error is that it has ended
		<-p.Ended()
	}
	return nil
}

// lastOf is the end of a log.
func lastOf(log string) string { return log[max(0, len(log)-2000):] }

// pause waits, unless ctx is done before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
