package fails

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

func TestADriverThatDiesIsComeBackTo(t *testing.T) {
	s := newScene(t)
	r := s.start(works)
	r.says(`"Controller starts"`)
	s.claim(0, 10)
	s.bound(10)

	var made atomic.Int32 // calls that the driver has done without an answer
	dead := make(chan struct{})
	s.driver.Hook(func(ctx context.Context, c *rig.Call) error {
		if c.Method == "CreateVolume" {
			made.Add(1)
			<-dead
		}
		return nil
	})
	s.claim(10, 11)
	s.until("the claim is in flight", func(context.Context) error {
		if made.Load() == 0 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	stopped := make(chan error, 1)
	go func() { stopped <- s.driver.Stop() }() // the service ends when its calls have
	await.NoError(t, "the driver accepts no connection", func() error {
		conn, err := net.Dial("unix", s.driver.Socket)
		if err != nil {
			return nil
		}
		return errors.Join(errors.New("it does"), conn.Close())
	})
	close(dead)
	if err := await.Receive(t, "the driver has stopped", stopped); err != nil {
		t.Log(err)
	}
	r.ends(1)
	if !contains(r, "the connection to the driver was lost") {
		t.Error("it does not say why it ended")
	}
	s.released()

	next := s.start(works) // as the kubelet does, before the driver is back
	if body := next.answers("/readyz",
		http.StatusServiceUnavailable); body != "waiting for the driver at "+s.driver.Socket+"\n" {
		t.Errorf("it is not ready as %s", body)
	}
	next.answers("/healthz", http.StatusOK)
	s.driver.Hook(nil)
	if err := s.driver.Serve(); err != nil {
		t.Fatal(err)
	}
	next.says(`"Controller starts"`)
	next.healthy()
	s.bound(11)
	s.emptied()
}

// ownPlane is a plane whose API server may be stopped.
func ownPlane(t *testing.T) *rig.Plane {
	t.Helper()
	p, err := rig.StartPlane(await.Context(t), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func (s *scene) serverBack() {
	s.Helper()
	if err := s.plane.StartAPIServer(await.Context(s.T)); err != nil {
		s.Fatal(err)
	}
}

func TestAnAPIServerThatIsAway(t *testing.T) {
	t.Parallel()
	s := sceneOn(t, ownPlane(t))
	leader := s.start(works)
	leader.says(`"Controller starts"`)
	patient := s.patiently(works)
	patient.waits()
	s.claim(0, 10)
	s.bound(10)

	s.plane.StopAPIServer()
	leader.ends(1)
	if !contains(leader, "the lease was lost") {
		t.Error("it does not say that it lost its lease")
	}
	next := s.patiently(works)
	next.says("Still waiting for the API server")
	next.answers("/healthz", http.StatusOK)
	if body := next.answers("/readyz", http.StatusServiceUnavailable); body != "waiting for the API server\n" {
		t.Errorf("it is not ready as %s", body)
	}
	s.serverBack()
	s.claim(10, 20)
	s.bound(20)

	// Shorter than a renew deadline: who leads now goes on.
	s.plane.StopAPIServer()
	s.serverBack()
	s.claim(20, 30)
	s.bound(30)
	s.alone()
	for _, r := range []*replica{patient, next} {
		if ended(r) {
			t.Errorf("process %d ended, though its lease is longer than that", r.Pid())
		}
		r.healthy()
	}
	s.emptied()
}

// patiently starts csi-sidecars with leases that outlast a restart of the API server on a busy
// machine.
func (s *scene) patiently(args ...string) *replica {
	s.Helper()
	return s.start(append(args, "--leader-election-lease-duration=302s", "--leader-election-renew-deadline=300s")...)
}
