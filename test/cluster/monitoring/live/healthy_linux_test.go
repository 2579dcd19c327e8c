package live

import (
	"fmt"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
)

// healthy is the number of runs of doctor on a healthy cluster.
const healthy = 100

// TestHealthy runs doctor on a healthy cluster: idle, while claims and snapshots are made and
// deleted and pods start and end, and during updates of the driver. No run may have a finding, or
// fail. During the updates a pod that has just started may not answer: then the exit code is 2.
func TestHealthy(t *testing.T) {
	if testing.Short() {
		t.Skip("this needs a cluster")
	}
	s := begin(t)
	await.NoError(t, "doctor names nothing", func() error {
		if r, code := s.doctor(); code != 0 {
			return fmt.Errorf("exit code %d: %s", code, r)
		}
		return nil
	})
	works, done := make(chan error, 1), make(chan struct{})
	go func() { works <- s.work(done) }()
	updates := make(chan error, 1)
	go func() { updates <- s.update() }()
	findings, partial, start := 0, 0, time.Now()
	var update time.Duration // of the updates
	for i := 0; i < healthy || update == 0; i++ {
		r, code := s.doctor()
		if code == 2 {
			partial++
		}
		for _, n := range r.NotChecked { // a pod that has just started is no reason for another check
			if n.Check != "HTTP ports of pods" {
				t.Errorf("run %d: not checked: %+v", i, n)
			}
		}
		if len(r.Findings) > 0 || r.Checks == 0 || code != 0 && (code != 2 || update > 0) {
			findings += len(r.Findings)
			t.Errorf("run %d, after %v, exit code %d:\n%s", i, time.Since(start), code, r)
		}
		select {
		case err := <-updates:
			s.must(err)
			update = time.Since(start)
		default:
		}
	}
	close(done)
	s.must(<-works)
	for range 20 {
		if r, code := s.doctor(); code != 0 {
			t.Errorf("afterwards, exit code %d:\n%s", code, r)
		}
	}
	t.Logf("%d findings in at least %d runs in %v, of which updates took %v; in %d runs a pod did not answer", findings, healthy,
		time.Since(start), update, partial)
}

// work makes and deletes claims, pods and snapshots until done is closed.
func (s *scene) work(done <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-done:
			return nil
		default:
		}
		name := fmt.Sprintf("work-%d", i)
		class := [...]string{"causeway-hostpath", "causeway-hostpath-image"}[i%2]
		if err := kube.Apply(s.anyhow(), claim(name, class, "20Mi")+"---\n"+pod(name, "", name)); err != nil {
			return err
		}
		// During an update a pod waits for the driver of its node.
		if _, err := s.try("wait", "pod/"+name, "--for=condition=Ready", "--timeout=55s"); err != nil {
			return err
		}
		if err := kube.Apply(s.anyhow(), snapshotOf(name, name)); err != nil {
			return err
		}
		if _, err := s.try("wait", "volumesnapshot/"+name, "--for=jsonpath={.status.readyToUse}=true", "--timeout=55s"); err != nil {
			return err
		}
		for _, object := range []string{"volumesnapshot", "pod", "pvc"} {
			if _, err := s.try("delete", object, name, "--timeout=55s"); err != nil {
				return err
			}
		}
	}
}

// update replaces the pods of the driver: those of the nodes, and then those of the controller.
func (s *scene) update() error {
	for _, w := range []string{"daemonset/causeway-node", controller} {
		if _, err := s.try("-n", install.Namespace, "rollout", "restart", w); err != nil {
			return err
		}
		if out, err := kube.Run(s.anyhow(), "-n", install.Namespace, "rollout", "status", w, "--timeout=180s"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}
