package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// This file simulates processes that elect a leader, in a synctest bubble. The processes run the
// product's code and client-go's, with the product's durations. They reach an API server in memory
// by links that lose and delay requests and answers.

// server is an API server for leases. It compares resource versions. It accepts other objects, and
// forgets them.
type server struct {
	mu      sync.Mutex
	leases  map[string]*coordinationv1.Lease
	version int
}

// serve returns the answer to a request.
func (s *server) serve(method, url string, body []byte) (int, any) {
	switch {
	case strings.Contains(url, "/events"):
		return http.StatusOK, metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	case strings.Contains(url, "/configmaps"):
		return http.StatusOK, metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.change(method, path.Base(url), body)
	var failure apierrors.APIStatus
	if errors.As(err, &failure) {
		status := failure.Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		return int(status.Code), &status
	}
	return http.StatusOK, l
}

// change reads or changes a lease.
func (s *server) change(method, name string, body []byte) (*coordinationv1.Lease, error) {
	kind := coordinationv1.Resource("leases")
	next := &coordinationv1.Lease{}
	if method == http.MethodPost || method == http.MethodPut {
		got, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		next = got.(*coordinationv1.Lease)
		name = next.Name
	}
	now := s.leases[name]
	switch {
	case now == nil && method != http.MethodPost:
		return nil, apierrors.NewNotFound(kind, name)
	case now != nil && method == http.MethodPost:
		return nil, apierrors.NewAlreadyExists(kind, name)
	case method == http.MethodPut && next.ResourceVersion != now.ResourceVersion:
		return nil, apierrors.NewConflict(kind, name, errors.New("the object has been modified"))
	case method == http.MethodGet:
		return now.DeepCopy(), nil
	case method == http.MethodPatch:
		next = now.DeepCopy()
		if err := json.Unmarshal(body, next); err != nil { // good enough for a merge of annotations
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	s.version++
	next.ResourceVersion = strconv.Itoa(s.version)
	next.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	s.leases[name] = next
	return next.DeepCopy(), nil
}

// holder returns the holder of a lease, or "".
func (s *server) holder(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[name]; l != nil {
		return holderOf(l)
	}
	return ""
}

// faults are the faults of a link.
type faults struct {
	latency      time.Duration // of each direction
	losesCalls   bool
	losesAnswers bool
}

// link is the way of a process to the API server.
type link struct {
	server *server
	sends  func(part string) // called when a worker's write leaves the process

	mu      sync.Mutex
	faults  faults
	exited  bool
	resumed chan struct{} // closed while the process runs
}

func (l *link) set(f faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = f
}

func (l *link) state() (faults, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faults, l.exited
}

// awaitRunning blocks while the process is stopped.
func (l *link) awaitRunning() {
	l.mu.Lock()
	resumed := l.resumed
	l.mu.Unlock()
	<-resumed
}

// silence is the time after which the HTTP/2 client of client-go ends a silent connection.
const silence = 45 * time.Second

// RoundTrip implements http.RoundTripper. A request may arrive after its caller has given up. A
// stopped process sees neither the answer nor the end of its context.
func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	if strings.Contains(r.URL.Path, "/configmaps/") {
		l.sends(path.Base(r.URL.Path))
	}
	l.awaitRunning()
	answered := make(chan *http.Response, 1)
	go func() {
		f, exited := l.state()
		if f.losesCalls || exited {
			return
		}
		time.Sleep(f.latency)
		code, object := l.server.serve(r.Method, r.URL.Path, body)
		f, _ = l.state()
		if time.Sleep(f.latency); f.losesAnswers {
			return
		}
		text, _ := json.Marshal(object)
		answered <- &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(bytes.NewReader(text)), Request: r}
	}()
	defer l.awaitRunning()
	if _, exited := l.state(); exited {
		return nil, errors.New("the process has ended")
	}
	select {
	case answer := <-answered:
		return answer, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(silence):
		return nil, errors.New("http2: client connection lost")
	}
}

// span is the time in which a process did the work of a controller.
type span struct{ first, last time.Time }

// world has an API server and the processes that have used it.
type world struct {
	*testing.T
	server *server

	mu    sync.Mutex
	spans map[string]map[string]*span // by controller and process
}

func newWorld(t *testing.T) *world {
	t.Cleanup(func() { time.Sleep(time.Hour) }) // the last events of processes that ended are sent
	return &world{T: t, server: &server{leases: map[string]*coordinationv1.Lease{}},
		spans: map[string]map[string]*span{"attacher": {}, "provisioner": {}}}
}

// apart fails unless each controller's work is done by one process at a time.
func (w *world) apart() {
	w.Helper()
	if most := w.overlap(); most > 0 {
		w.Errorf("two processes worked at the same time, for %v", most)
	}
}

// overlap returns the longest time for which two processes did the same work.
func (w *world) overlap() (most time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for part, spans := range w.spans {
		names := slices.Sorted(maps.Keys(spans))
		for i, a := range names {
			for _, b := range names[i+1:] {
				one, two := spans[a], spans[b]
				if two.first.Before(one.first) {
					one, two = two, one
				}
				if both := one.last.Sub(two.first); both >= 0 {
					w.Logf("%s: %s and %s worked at the same time, for %v", part, a, b, both)
					most = max(most, both, time.Nanosecond)
				}
			}
		}
	}
	return most
}

// worker returns the process that did the work of a controller last, and the time since.
func (w *world) worker(part string) (name string, since time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var last time.Time
	for n, s := range w.spans[part] {
		if s.last.After(last) {
			name, last = n, s.last
		}
	}
	return name, time.Since(last)
}

// isDone reports whether the work of both controllers is done.
func (w *world) isDone() bool {
	for part := range w.spans {
		if _, since := w.worker(part); since > 2*time.Second {
			return false
		}
	}
	return true
}

// isDoneBy fails unless a process does the work of both controllers, within the time that a worker
// pauses.
func (w *world) isDoneBy(want string) {
	w.Helper()
	for part := range w.spans {
		if got, since := w.worker(part); got != want || since > 2*time.Second {
			w.Errorf("%s: %q worked %v ago, want %q at present", part, got, since, want)
		}
	}
}

// proc is a process: of csi-sidecars, or of an upstream sidecar.
type proc struct {
	world   *world
	name    string
	link    *link
	cancel  context.CancelFunc // as SIGTERM
	ended   chan struct{}
	cluster *Cluster // nil for upstream's

	mu      sync.Mutex
	failure error
}

// process returns a process that does not run yet, and its context.
func (w *world) process(name string) (*proc, context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(w.Context(), logr.Discard()))
	p := &proc{world: w, name: name, cancel: cancel, ended: make(chan struct{})}
	running := make(chan struct{})
	close(running)
	p.link = &link{server: w.server, resumed: running, faults: faults{latency: 20 * time.Millisecond},
		sends: func(part string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			s := w.spans[part][name]
			if s == nil {
				s = &span{first: time.Now()}
				w.spans[part][name] = s
			}
			s.last = time.Now()
		}}
	return p, ctx
}

// simulated is the driver's name.
const simulated = "d"

// controllers returns two controllers with the leases of upstream's sidecars.
func controllers() []*sidecar.Part {
	var parts []*sidecar.Part
	for _, name := range []string{"attacher", "provisioner"} {
		parts = append(parts, &sidecar.Part{Controller: plain{name: name,
			needs: sidecar.Needs{Cluster: true, Lock: func(driver string) string { return name + "-" + driver }}}})
	}
	return parts
}

// start starts a process of csi-sidecars.
func (w *world) start(name, mode string) *proc {
	p, ctx := w.process(name)
	c := New()
	s := standard(mode)
	c.election.on, c.election.mode, c.election.namespace, c.election.identity = true, s.mode, s.namespace, name
	c.election.lease, c.election.renew, c.election.retry = s.lease, s.renew, s.retry
	c.config, c.transport = &rest.Config{Host: "http://api"}, p.link
	c.fail, c.election.fail = p.fail, p.fail
	p.cluster = c
	go func() {
		defer close(p.ended)
		err := c.elect(ctx, c.Client(electing, unlimited).Kube, c.election.leases(simulated, controllers()),
			func(ctx context.Context, parts []*sidecar.Part) error {
				var working sync.WaitGroup
				for _, part := range parts {
					working.Go(func() { p.work(ctx, c.Client(part.Name(), unlimited).Kube, part.Name()) })
				}
				working.Wait()
				return nil
			})
		if err != nil {
			p.fail(err)
		}
		p.exit()
	}()
	return p
}

// upstream starts an upstream sidecar for one controller. Without its lease it ends at once.
func (w *world) upstream(name, part string) *proc {
	p, ctx := w.process(name)
	client := must(kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api", QPS: -1},
		&http.Client{Transport: p.link}))
	elector := must(leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "ns", Name: part + "-" + simulated},
			Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: name}},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { p.work(ctx, client, part) },
			OnStoppedLeading: p.exit,
		},
	}))
	go func() {
		defer close(p.ended)
		elector.Run(ctx)
		p.exit()
	}()
	return p
}

// work writes an object each second until ctx is done, and once more then: the result of the last
// call to the driver.
func (p *proc) work(ctx context.Context, client kubernetes.Interface, part string) {
	write := func() {
		p.link.awaitRunning()
		if _, exited := p.link.state(); exited {
			return
		}
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		client.CoreV1().ConfigMaps("ns").Update(short, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: part}},
			metav1.UpdateOptions{})
	}
	for write(); pause(ctx, time.Second); {
		write()
	}
	write()
}

// fail ends the process, as package sidecar does.
func (p *proc) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		p.failure = err
	}
	p.cancel()
}

// exit ends the process at once, as SIGKILL does.
func (p *proc) exit() {
	p.link.mu.Lock()
	p.link.exited = true
	p.link.mu.Unlock()
	p.cancel()
}

// stop stops the process until resume, as SIGSTOP does.
func (p *proc) stop() {
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	p.link.resumed = make(chan struct{})
}

func (p *proc) resume() {
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	close(p.link.resumed)
}

// ends waits for the end of the process and returns its failure.
func (p *proc) ends() error {
	p.world.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Hour):
		p.world.Fatalf("%s does not end", p.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// terminate ends the process with SIGTERM, and fails unless that is a success.
func (p *proc) terminate() {
	p.world.Helper()
	p.cancel()
	if err := p.ends(); err != nil {
		p.world.Errorf("%s failed: %v", p.name, err)
	}
}

// isOver reports whether the process has ended.
func (p *proc) isOver() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// takeover is more than the time until a waiting process leads after the death of a leader: the
// lease, and two retries, each with client-go's jitter of 1.2 times the period.
const takeover = leaseDuration + 5*retryPeriod

func (p *proc) String() string {
	return fmt.Sprintf("%s (over: %t, %v)", p.name, p.isOver(), p.failure)
}
