package fails

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/freeport"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// replica is a process under test.
type replica struct {
	*rig.Process
	s   *scene
	url string // of its port
}

// quickly are flags with which a lease that is given up changes hands at once. A lease whose leader
// died lasts longer than the API server of eight scenes takes for a renewal on a busy machine.
var quickly = []string{
	"--leader-election", "--leader-election-lease-duration=15s", "--leader-election-renew-deadline=12s", "--leader-election-retry-period=500ms",
	"--kube-api-qps=200", "--kube-api-burst=400",
}

// handsOver are later flags for a process whose handover a test waits for: csi-sidecars holds old
// leases for twenty times as long as its own lasts.
var handsOver = []string{"--leader-election-lease-duration=9s", "--leader-election-renew-deadline=8s"}

// works are the controllers that make, attach and grow volumes.
const works = "--controllers=provisioner,attacher,resizer"

// start starts csi-sidecars.
func (s *scene) start(args ...string) *replica {
	s.Helper()
	return s.program(world.binary, nil, append(append([]string{}, quickly...), args...)...)
}

// program starts a program of this kind, whose log is shown if the test fails.
func (s *scene) program(path string, env []string, args ...string) *replica {
	s.Helper()
	address := freeport.Must(s.T)
	p, err := rig.StartProcess(path, env, append([]string{
		"--kubeconfig=" + s.plane.Kubeconfig(), "--csi-address=" + s.driver.Socket, "--http-endpoint=" + address,
		"--leader-election-namespace=" + s.ns,
	}, args...)...)
	if err != nil {
		s.Fatal(err)
	}
	r := &replica{Process: p, s: s, url: "http://" + address}
	s.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.Ended()
		if s.Failed() {
			s.Logf("the log of process %d:\n%s", p.Pid(), shorten(p.Log()))
		}
	})
	return r
}

// shorten leaves the middle of a long log out.
func shorten(log string) string {
	const most = 6000
	if len(log) <= 2*most {
		return log
	}
	return log[:most] + "\n…\n" + log[len(log)-most:]
}

// says waits for words in the log.
func (r *replica) says(words string) {
	r.s.Helper()
	r.s.until(fmt.Sprintf("process %d says %q", r.Pid(), words), func(context.Context) error {
		over := ended(r) // asked first: its last log lines count
		switch {
		case contains(r, words):
			return nil
		case over:
			r.s.Fatalf("process %d ended with %d and did not say %q", r.Pid(), r.ExitCode(), words)
		}
		return errors.New("it does not")
	})
}

// contains reports whether words are in the log.
func contains(r *replica, words string) bool { return strings.Contains(r.Log(), words) }

// leads waits until the process has the single lease.
func (r *replica) leads() {
	r.s.Helper()
	r.says(`"Leading"`)
}

// waits waits until the process knows of another that leads.
func (r *replica) waits() {
	r.s.Helper()
	r.says("There is a leader")
}

// identity is the process's in leases, as its log of its leading has it.
func (r *replica) identity() string {
	m := regexp.MustCompile(`There is a leader.* identity="([^"]+)"`).FindStringSubmatch(r.Log())
	if m == nil {
		r.s.Fatalf("process %d never said who leads", r.Pid())
	}
	return m[1]
}

// answers waits until a path of the process's port has a code, and returns the body.
func (r *replica) answers(path string, code int) (body string) {
	r.s.Helper()
	r.s.until(fmt.Sprintf("%s answers %d", path, code), func(ctx context.Context) error {
		var got int
		var err error
		if got, body, err = rig.Get(ctx, r.url+path); err == nil && got != code {
			err = fmt.Errorf("it answers %d: %s", got, body)
		}
		return err
	})
	return body
}

// healthy fails unless the process is.
func (r *replica) healthy() {
	r.s.Helper()
	r.answers("/healthz", http.StatusOK)
	r.answers("/readyz", http.StatusOK)
}

// send sends a signal.
func (r *replica) send(signal syscall.Signal) {
	r.s.Helper()
	if err := r.Signal(signal); err != nil {
		r.s.Fatal(err)
	}
}

// ends waits for the process's end and returns how long it took.
func (r *replica) ends(code int) time.Duration {
	r.s.Helper()
	start := time.Now()
	await.Receive(r.s.T, fmt.Sprintf("process %d ends", r.Pid()), r.Ended())
	if got := r.ExitCode(); got != code {
		r.s.Errorf("process %d ended with %d, want %d", r.Pid(), got, code)
	}
	return time.Since(start)
}
