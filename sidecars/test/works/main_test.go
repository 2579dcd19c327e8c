// Package works has the tests that csi-sidecars works: upstream's controllers in our process, with
// a real API server, its controller manager, and a CSI driver of ours that has every capability.
package works

import (
	"context"
	"errors"
	"log"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// world is the state that all tests share.
var world struct {
	*rig.Plane
	dir    string // short, as sockets are in it
	binary string // csi-sidecars
	// alive is done when a process has ended without an order.
	alive context.Context
	died  context.CancelCauseFunc
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		log.Println(err)
		code = 1
	}
	os.Exit(code)
}

// run starts the world, runs the tests in it, and ends it.
func run(m *testing.M) (code int, err error) {
	if world.dir, err = os.MkdirTemp("", "works-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(world.dir)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // the first time, components are built
	defer cancel()
	world.alive, world.died = context.WithCancelCause(context.Background())
	built := make(chan error, 1)
	go func() {
		var err error
		world.binary, err = rig.Build(ctx, world.dir, "csi-sidecars")
		built <- err
	}()
	world.Plane, err = startPlane(ctx)
	if err := errors.Join(err, <-built); err != nil {
		return 1, err
	}
	defer world.Close()
	code = m.Run()
	return code, errors.Join(everything.stop(), topological.stop(), strict.stop())
}

// startPlane starts a control plane with the gate that health needs, which records all watches: see
// watches.
func startPlane(ctx context.Context) (*rig.Plane, error) {
	policy := filepath.Join(world.dir, "audit.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	return rig.StartPlane(ctx, controlplane.Options{APIServerArgs: []string{
		"--feature-gates=CSIVolumeHealth=true",
		"--audit-policy-file=" + policy, "--audit-log-path=" + auditLog(),
	}})
}

// shared is a process that several tests use. It is started by the first test that needs it.
type shared struct {
	setup
	once sync.Once
	*sidecars
	err error
}

// all are the controllers that a driver has for itself.
const all = "attacher,provisioner,resizer,snapshotter"

// everything has all controllers. There is a single process of it, as there is a single
// snapshot-controller in a cluster.
var everything = shared{setup: setup{
	name: "everything", controllers: all + ",snapshot-controller", args: []string{"--extra-create-metadata"}, rights: []string{"--driver-topology=false"},
}}

// use returns the process for a test.
func (s *shared) use(t *testing.T) *sidecars {
	t.Helper()
	s.once.Do(func() { s.sidecars, s.err = start(await.Context(t), s.setup) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	showLog(t, s.sidecars)
	return s.sidecars
}

// stop ends the process, if it was started.
func (s *shared) stop() error {
	if s.sidecars == nil {
		return nil
	}
	return s.sidecars.stop()
}
