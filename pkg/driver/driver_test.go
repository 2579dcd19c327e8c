package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

func TestEveryErrorHasItsCode(t *testing.T) {
	known := map[error]codes.Code{
		context.Canceled:           codes.Canceled,
		context.DeadlineExceeded:   codes.DeadlineExceeded,
		backend.ErrNotFound:        codes.NotFound,
		backend.ErrExists:          codes.AlreadyExists,
		backend.ErrInvalid:         codes.InvalidArgument,
		backend.ErrInUse:           codes.FailedPrecondition,
		backend.ErrExhausted:       codes.ResourceExhausted,
		backend.ErrOutOfRange:      codes.OutOfRange,
		backend.ErrBusy:            codes.Aborted,
		backend.ErrUnavailable:     codes.Unavailable,
		backend.ErrNotReady:        codes.FailedPrecondition,
		backend.ErrUnauthenticated: codes.Unauthenticated,
		mounter.ErrServer:          codes.Unavailable,
		mounter.ErrAccess:          codes.PermissionDenied,
		mounter.ErrNotFound:        codes.NotFound,
		mounter.ErrCredentials:     codes.FailedPrecondition,
		backend.ErrDenied:          codes.PermissionDenied,
		mounter.ErrPath:            codes.InvalidArgument,
		mounter.ErrOption:          codes.InvalidArgument,
		mounter.ErrConflict:        codes.AlreadyExists,
		mounter.ErrBusy:            codes.FailedPrecondition,
		mounter.ErrDevice:          codes.FailedPrecondition,
		mounter.ErrStalled:         codes.Unavailable,
		mounter.ErrNoAnswer:        codes.Unavailable,
		mounter.ErrCheck:           codes.Unavailable,
		mounter.ErrNotEmpty:        codes.FailedPrecondition,
		mounter.ErrReadOnly:        codes.FailedPrecondition,
		backend.ErrPrecondition:    codes.FailedPrecondition,
		errPrecondition:            codes.FailedPrecondition,
		errToken:                   codes.Aborted,
		errStalled:                 codes.DeadlineExceeded,
		errors.ErrUnsupported:      codes.Unimplemented,
		syscall.EMFILE:             codes.Unavailable,
		syscall.ENFILE:             codes.Unavailable,
		syscall.ENOMEM:             codes.Unavailable,
		syscall.ENOSPC:             codes.Unavailable,
		syscall.EDQUOT:             codes.Unavailable,
		syscall.EROFS:              codes.Unavailable,
	}
	for err, code := range known {
		if got := codeOf(fmt.Errorf("call: %w", fmt.Errorf("cause: %w", err))); got != code {
			t.Errorf("%v is %s, want %s", err, got, code)
		}
	}
	if len(known) != len(statusCodes) {
		t.Errorf("the table has %d lines, the test %d", len(statusCodes), len(known))
	}
	for _, tc := range []struct {
		err  error
		code codes.Code
	}{
		{errors.New("anything"), codes.Internal},
		{fs.ErrNotExist, codes.Internal}, // a missing file must never become a missing volume
		{status.Error(codes.Unimplemented, "x"), codes.Unimplemented},
		{fmt.Errorf("%w: %w", backend.ErrInvalid, mounter.ErrOption), codes.InvalidArgument},
		{errors.Join(backend.ErrExhausted, errors.New("disk full")), codes.ResourceExhausted},
		{fmt.Errorf("%w: %w", backend.ErrNotReady, backend.ErrUnavailable), codes.FailedPrecondition},
		{fmt.Errorf("%w: %w", backend.ErrUnavailable, fs.ErrNotExist), codes.Unavailable},
		{fmt.Errorf("%w: %w", backend.ErrInvalid, &fs.PathError{Op: "open", Path: "x", Err: syscall.EMFILE}),
			codes.Unavailable},
		{fmt.Errorf("%w: %w", backend.ErrExhausted, syscall.ENOSPC), codes.ResourceExhausted},
		{fmt.Errorf("%w: %w", backend.ErrOutOfRange, syscall.ENOSPC), codes.OutOfRange},
		{fmt.Errorf("%w: %w", mounter.ErrReadOnly, syscall.EROFS), codes.FailedPrecondition},
		{syscall.EIO, codes.Internal}, // a disk error should cause an alert
	} {
		if got := codeOf(tc.err); got != tc.code {
			t.Errorf("%v is %s, want %s", tc.err, got, tc.code)
		}
	}
}

// odd is a backend whose results a test chooses.
type odd struct {
	backend.Backend
	create    func() error
	probe     func() (bool, error)
	trouble   []backend.Condition
	unhealthy func()
	limits    []int
}

func (o *odd) Create(context.Context, backend.CreateOptions) (backend.Volume, error) {
	return backend.Volume{}, o.create()
}

func (o *odd) Probe(context.Context) (bool, error) { return o.probe() }

func (o *odd) List(_ context.Context, _ string, limit int) ([]backend.Volume, bool, error) {
	o.limits = append(o.limits, limit)
	return nil, false, nil
}

func (o *odd) Health(context.Context, string) ([]backend.Condition, error) { return nil, nil }

func (o *odd) ListHealth(context.Context, string, int) ([]backend.VolumeHealth, bool, error) {
	if o.unhealthy != nil {
		o.unhealthy()
	}
	return nil, false, nil
}

func (o *odd) StorageHealth(context.Context) ([]backend.Condition, error) { return o.trouble, nil }

// serveOdd serves a backend on a socket and returns clients of the server. The channel gets the
// result of Serve after stop.
func serveOdd(t *testing.T, b backend.Backend, log *logBuffer, drain time.Duration,
	change ...func(*Config)) (conn *grpc.ClientConn, stop func(), served chan error) {
	t.Helper()
	d := startDriver(t)
	cfg := Config{
		Name: testName, Release: "test", Node: "n", Backend: b, Mounter: d.mounter, StateDir: d.path("state"),
		Log: newTestLogger(log), Registry: newRegistry(),
	}
	for _, c := range change {
		c(&cfg)
	}
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	l, address := d.listen("2")
	ctx, cancel := context.WithCancel(context.Background())
	served = make(chan error, 1)
	go func() { served <- server.Serve(ctx, drain, Endpoint{server.All(), l}) }()
	if conn, err = grpc.NewClient(address, insecureOption()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); conn.Close() })
	return conn, cancel, served
}

func alwaysReady() (bool, error) { return true, nil }

func TestPanicsAndSecretsOfABackend(t *testing.T) {
	secret := "correct horse battery"
	for name, tc := range map[string]struct {
		create  func() error
		code    codes.Code
		wantErr string
	}{
		"the backend panics": {func() error { panic("a bug") }, codes.Internal, "panicked"},
		"the error has a secret": {func() error { return errors.New("login as " + secret) }, codes.Internal,
			"login as ***"},
		"the status has a secret": {func() error { return status.Error(codes.NotFound, secret) }, codes.NotFound,
			"***"},
		"the error wraps a known class": {func() error { return fmt.Errorf("disk: %w", backend.ErrExhausted) },
			codes.ResourceExhausted, "insufficient capacity"},
	} {
		t.Run(name, func(t *testing.T) {
			log := &logBuffer{}
			conn, _, _ := serveOdd(t, &odd{create: tc.create, probe: alwaysReady}, log, time.Second)
			req := createRequest("x")
			req.Secrets = map[string]string{"password": secret}
			_, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), req)
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.wantErr) ||
				strings.Contains(err.Error(), secret) {
				t.Errorf("got %v, want %s with %q", err, tc.code, tc.wantErr)
			}
			if strings.Contains(log.String(), secret) {
				t.Errorf("the secret is in the log: %s", log.String())
			}
		})
	}
}

func TestAPanicOutsideOfACallEndsNothing(t *testing.T) {
	log := &logBuffer{}
	b := &odd{probe: func() (bool, error) { panic("a bug") }}
	conn, _, _ := serveOdd(t, b, log, time.Second)
	for range 2 {
		_, err := csi.NewIdentityClient(conn).Probe(context.Background(), &csi.ProbeRequest{})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "panicked") {
			t.Errorf("Probe = %v", err)
		}
	}
	d := &Driver{cfg: Config{Backend: b, Log: newTestLogger(log)}, prober: &prober{backend: b}}
	b.unhealthy = func() { panic("a bug") }
	d.logUnhealthy(context.Background())
	if !strings.Contains(log.String(), "cannot list the health of volumes") {
		t.Errorf("the panic is not in the log: %s", log.String())
	}
}

func TestLargeMessagesAndPages(t *testing.T) {
	b := &odd{create: func() error { return backend.ErrInvalid }, probe: alwaysReady}
	conn, _, _ := serveOdd(t, b, &logBuffer{}, time.Second)
	req := createRequest("x")
	req.Secrets = map[string]string{"x": strings.Repeat("s", 5<<20)} // over the default limit of gRPC
	_, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), req)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a message of 5 MiB: %.100v, want the backend's answer", err)
	}
	for _, entries := range []int32{0, 1, maxPage, math.MaxInt32} {
		if _, err := csi.NewControllerClient(conn).ListVolumes(context.Background(),
			&csi.ListVolumesRequest{MaxEntries: entries}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{maxPage, 1, maxPage, maxPage}; !slices.Equal(b.limits, want) {
		t.Errorf("the backend got the limits %v, want %v", b.limits, want)
	}
}

func TestAStalledProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, release := make(chan struct{}, 100), make(chan struct{})
		p := &prober{backend: &odd{probe: func() (bool, error) {
			asked <- struct{}{}
			<-release
			return true, nil
		}}}
		for range 10 {
			ctx, cancel := context.WithTimeout(context.Background(), probeLimit-time.Second)
			if ready, err := p.probe(ctx); ready || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("probe = %v, %v while the disk is stalled", ready, err)
			}
			cancel()
		}
		start := time.Now()
		if ready, err := p.probe(t.Context()); ready || !errors.Is(err, backend.ErrNotReady) ||
			time.Since(start) != probeLimit {
			t.Errorf("without a deadline probe = %v, %v after %v, want %v", ready, err, time.Since(start), probeLimit)
		}
		close(release)
		if ready, err := p.probe(context.Background()); !ready || err != nil {
			t.Errorf("probe = %v, %v when the disk is back", ready, err)
		}
		if n := len(asked); n > 2 {
			t.Errorf("%d probes waited for the disk, want 1", n)
		}
	})
}

// TestAStalledListOfHealth: the metrics show the state of the driver also while the disk stalls.
func TestAStalledListOfHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		b := &odd{unhealthy: func() { <-release }}
		d := &Driver{cfg: Config{Backend: b, Log: newTestLogger(&logBuffer{})}, prober: &prober{backend: b}}
		ctx, cancel := context.WithTimeout(t.Context(), probeLimit)
		defer cancel()
		start := time.Now()
		d.logUnhealthy(ctx) // a deadlock of the bubble if it waits for the list
		if since := time.Since(start); since != probeLimit {
			t.Errorf("it waited for %v, want %v", since, probeLimit)
		}
	})
}

func TestLoggedStates(t *testing.T) {
	b := &odd{probe: alwaysReady}
	d := &Driver{cfg: Config{Backend: b}, prober: &prober{backend: b}}
	registry := newRegistry()
	registry.MustRegister(stateMetrics{&d.last})
	metrics := func() (all string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				all += fmt.Sprintf(" %s%v=%v", strings.TrimPrefix(f.GetName(), metricPrefix), m.GetLabel(),
					m.GetGauge().GetValue())
			}
		}
		return strings.ReplaceAll(all, "  ", " ")
	}
	want := func(name, why, measured string) {
		t.Helper()
		s := d.state(context.Background())
		if s.name != name || s.why() != why {
			t.Errorf("state = %q, %q, want %q, %q", s.name, s.why(), name, why)
		}
		d.last.Store(&s)
		if got := metrics(); got != measured {
			t.Errorf("metrics of %q:%s, want%s", name, got, measured)
		}
	}
	if got := metrics(); got != " ready[]=0" {
		t.Errorf("metrics before the first state:%s", got)
	}
	want(ready, "", " ready[]=1")
	b.trouble = []backend.Condition{{Reason: "TrashStuck", Message: "x"}, {Reason: "TrashStuck", Message: "y"},
		{Reason: "SweepFailed", Message: "z"}}
	want(unhealthy, "TrashStuck: x; TrashStuck: y; SweepFailed: z",
		` ready[]=1 storage_conditions[name:"reason" value:"SweepFailed"]=1`+
			` storage_conditions[name:"reason" value:"TrashStuck"]=1`)
	b.probe = func() (bool, error) { return false, nil }
	want(starting, "", " ready[]=0")
	b.probe = func() (bool, error) { return false, errors.New("no disk") }
	want(notReady, "no disk", " ready[]=0")
	s := state{name: unhealthy, err: errors.New("no answer")}
	d.last.Store(&s)
	if got := metrics(); got != ` ready[]=1 storage_conditions[name:"reason" value:"NoAnswer"]=1` {
		t.Errorf("metrics without an answer of the storage:%s", got)
	}
}

func TestTheLogIsJSONThroughout(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, err := logCalls(log)(context.Background(), createRequest("pvc-1"),
		&grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/CreateVolume"},
		func(context.Context, any) (any, error) {
			return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v"}}, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Msg, Code, Name, Volume string
		Ms                      float64
		Request, Response       map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if line.Msg != "CreateVolume" || line.Code != "OK" || line.Name != "pvc-1" || line.Volume != "v" ||
		line.Request["name"] != "pvc-1" || line.Response["volume"] == nil {
		t.Errorf("the line is %s", out.String())
	}
}

func TestAPanicIsAnErrorAndIsLogged(t *testing.T) {
	var out logBuffer
	intercept := func(handler grpc.UnaryHandler) error {
		count, err := countCalls(newRegistry())
		if err != nil {
			t.Fatal(err)
		}
		info := &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodePublishVolume"}
		chain := handler
		for _, i := range []grpc.UnaryServerInterceptor{recoverPanics, mapErrors, logCalls(newTestLogger(&out)),
			count} {
			next := chain
			chain = func(ctx context.Context, req any) (any, error) { return i(ctx, req, info, next) }
		}
		_, err = chain(context.Background(), &csi.NodePublishVolumeRequest{VolumeId: "v"})
		return err
	}
	err := intercept(func(context.Context, any) (any, error) { panic("a bug") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "goroutine") {
		t.Errorf("got %v", err)
	}
	if log := out.String(); !strings.Contains(log, "a bug") || !strings.Contains(log, "driver_test.go") {
		t.Errorf("the log has no stack: %s", log)
	}
}

func TestLocksRejectASecondCallForAVolume(t *testing.T) {
	l := newLocks()
	req := &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: "/staging", TargetPath: "/one"}
	call := func(req any, handler grpc.UnaryHandler) error {
		_, err := l.intercept(context.Background(), req, nil, handler)
		return err
	}
	nothing := func(context.Context, any) (any, error) { return nil, nil }
	err := call(req, func(context.Context, any) (any, error) {
		for _, busy := range []any{
			req,
			&csi.NodePublishVolumeRequest{VolumeId: "other", TargetPath: "/one"},
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/two"},
			&csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/three"},
			&csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/three"},
			&csi.NodeUnstageVolumeRequest{VolumeId: "other", StagingTargetPath: "/staging"},
			&csi.DeleteVolumeRequest{VolumeId: "v"},
			&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n"},
			&csi.ControllerUnpublishVolumeRequest{VolumeId: "v"},
		} {
			if err := call(busy, nothing); !errors.Is(err, backend.ErrBusy) {
				t.Errorf("%T = %v, want ErrBusy", busy, err)
			}
		}
		for _, free := range []any{
			&csi.NodePublishVolumeRequest{VolumeId: "other", TargetPath: "/other"}, // inline
			&csi.DeleteVolumeRequest{VolumeId: "/one"},
			&csi.CreateVolumeRequest{Name: "v"},
			&csi.ControllerPublishVolumeRequest{VolumeId: "other", NodeId: "v"},
			&csi.ControllerUnpublishVolumeRequest{VolumeId: "other", NodeId: "v"},
			&csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/one"},
			&csi.ListVolumesRequest{},
		} {
			if err := call(free, nothing); err != nil {
				t.Errorf("%T = %v", free, err)
			}
		}
		return nil, nil
	})
	if err != nil || len(l.held) != 0 {
		t.Errorf("%v, held: %v", err, l.held)
	}
	if err := call(req, func(context.Context, any) (any, error) { return nil, errors.New("failed") }); err == nil ||
		len(l.held) != 0 {
		t.Errorf("after a failure %v is held", l.held)
	}
}

// TestLocksRejectConcurrentCalls checks which calls the locks of a call reject.
func TestLocksRejectConcurrentCalls(t *testing.T) {
	nothing := func(context.Context, any) (any, error) { return nil, nil }
	for name, tc := range map[string]struct {
		running    any
		busy, free []any
	}{
		"a snapshot that is created": {
			&csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: "v"},
			[]any{&csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: "other"}},
			[]any{
				&csi.CreateSnapshotRequest{Name: "y", SourceVolumeId: "v"}, &csi.CreateVolumeRequest{Name: "x"},
				&csi.DeleteSnapshotRequest{SnapshotId: "x"}, &csi.ListSnapshotsRequest{},
				&csi.GetSnapshotRequest{SnapshotId: "x"},
				// the backend rejects this call
				&csi.NodePublishVolumeRequest{VolumeId: "v"}, &csi.DeleteVolumeRequest{VolumeId: "v"},
			},
		},
		"a snapshot that is deleted": {
			&csi.DeleteSnapshotRequest{SnapshotId: "x"},
			[]any{&csi.DeleteSnapshotRequest{SnapshotId: "x"}},
			[]any{
				&csi.DeleteSnapshotRequest{SnapshotId: "y"}, &csi.DeleteVolumeRequest{VolumeId: "x"},
				&csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: "v"},
				&csi.ListSnapshotsRequest{SnapshotId: "x"}, &csi.GetSnapshotRequest{SnapshotId: "x"},
			},
		},
		"a group snapshot that is created": {
			&csi.CreateVolumeGroupSnapshotRequest{Name: "x", SourceVolumeIds: []string{"v"}},
			[]any{&csi.CreateVolumeGroupSnapshotRequest{Name: "x", SourceVolumeIds: []string{"other"}}},
			[]any{
				&csi.CreateVolumeGroupSnapshotRequest{Name: "y",
					SourceVolumeIds: []string{"v"}}, &csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: "v"},
				&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "x"},
				&csi.NodeUnstageVolumeRequest{VolumeId: "v"},
			},
		},
		"a group snapshot that is deleted": {
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "x", SnapshotIds: []string{"s"}},
			[]any{&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "x"}},
			[]any{
				&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "y"},
				&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "x"},
				&csi.DeleteSnapshotRequest{SnapshotId: "s"}, // the backend rejects this call
			},
		},
		"a volume that is modified": {
			&csi.ControllerModifyVolumeRequest{VolumeId: "v"},
			[]any{&csi.ControllerModifyVolumeRequest{VolumeId: "v"}, &csi.ControllerExpandVolumeRequest{VolumeId: "v"},
				&csi.NodeStageVolumeRequest{VolumeId: "v"}},
			[]any{&csi.ControllerModifyVolumeRequest{VolumeId: "x"}, &csi.ControllerGetVolumeRequest{VolumeId: "v"}},
		},
		"a volume that is restored": {
			&csi.CreateVolumeRequest{Name: "x", VolumeContentSource: ofSnapshot("s")},
			[]any{&csi.CreateVolumeRequest{Name: "x"},
				&csi.CreateVolumeRequest{Name: "x", VolumeContentSource: ofVolume("v")}},
			[]any{&csi.CreateVolumeRequest{Name: "y", VolumeContentSource: ofSnapshot("s")},
				&csi.DeleteSnapshotRequest{SnapshotId: "s"}},
		},
		"a volume that is cloned": {
			&csi.CreateVolumeRequest{Name: "x", VolumeContentSource: ofVolume("v")},
			[]any{&csi.CreateVolumeRequest{Name: "x", VolumeContentSource: ofVolume("v")}},
			[]any{&csi.CreateVolumeRequest{Name: "y", VolumeContentSource: ofVolume("v")},
				&csi.NodeUnpublishVolumeRequest{VolumeId: "v"}},
		},
	} {
		l := newLocks()
		_, err := l.intercept(context.Background(), tc.running, nil, func(context.Context, any) (any, error) {
			for _, busy := range tc.busy {
				if _, err := l.intercept(context.Background(), busy, nil, nothing); !errors.Is(err, backend.ErrBusy) {
					t.Errorf("%s: %T %v = %v, want ErrBusy", name, busy, busy, err)
				}
			}
			for _, free := range tc.free {
				if _, err := l.intercept(context.Background(), free, nil, nothing); err != nil {
					t.Errorf("%s: %T %v = %v", name, free, free, err)
				}
			}
			return nil, nil
		})
		if err != nil || len(l.held) != 0 {
			t.Errorf("%s: %v, held: %v", name, err, l.held)
		}
	}
}

// TestManyCallsAtOnce makes 200 mixed calls concurrently, on a shared volume and on many volumes,
// and checks the state after them.
func TestManyCallsAtOnce(t *testing.T) {
	forEachMounter(t, func(t *testing.T, d *testDriver) {
		d.skipSlowLinks()
		ctx := context.Background()
		one := d.create("one", capability(sharedMode))
		d.stage(one)
		var wg sync.WaitGroup
		var done, aborted atomic.Int64
		check := func(what string, err error) {
			switch status.Code(err) {
			case codes.OK:
				done.Add(1)
			case codes.Aborted:
				aborted.Add(1)
			default:
				t.Errorf("%s: %v", what, err)
			}
		}
		for i := range 100 {
			wg.Go(func() { // on a shared volume
				target := fmt.Sprint("one-", i%10)
				switch i % 4 {
				case 0:
					check("publish", one.publish(target))
				case 1:
					check("unpublish", one.unpublish(target))
				case 2:
					check("stage", one.stage())
				case 3:
					_, err := d.NodeGetVolumeStats(ctx,
						&csi.NodeGetVolumeStatsRequest{VolumeId: one.id, VolumePath: one.staging})
					check("stats", err)
				}
			})
			wg.Go(func() { // on a volume of its own
				v := d.create(fmt.Sprint("own-", i), capability(sharedMode))
				check("stage", v.stage())
				check("publish", v.publish(fmt.Sprint("own-", i)))
				if _, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 10}); err != nil {
					t.Error(err)
				}
				check("unpublish", v.unpublish(fmt.Sprint("own-", i)))
				check("unstage", v.unstage())
				check("delete", v.delete())
			})
		}
		wg.Wait()
		if done.Load() < 500 {
			t.Errorf("%d calls done, %d aborted: each caller has a volume of its own", done.Load(), aborted.Load())
		}
		for i := range 10 {
			d.want(codes.OK, one.unpublish(fmt.Sprint("one-", i)))
		}
		d.want(codes.OK, one.unstage())
		d.want(codes.OK, one.delete())
		if users, err := d.mounter.MountPointsOf(d.root); err != nil || len(users) != 0 {
			t.Errorf("still mounted: %v, %v", users, err)
		}
		if left, err := os.ReadDir(filepath.Join(d.root, "volumes")); err != nil || len(left) != 0 {
			t.Errorf("volumes left: %v, %v", left, err)
		}
	})
}

func TestTheSameCreateManyTimesMakesOneVolume(t *testing.T) {
	d := startDriver(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, err := d.CreateVolume(context.Background(), createRequest("pvc-1"))
			if code := status.Code(err); code != codes.OK && code != codes.Aborted {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := d.ListVolumes(context.Background(), &csi.ListVolumesRequest{}); err != nil ||
		len(list.GetEntries()) != 1 {
		t.Errorf("ListVolumes = %v, %v", list, err)
	}
}

func TestEndpoints(t *testing.T) {
	if overTCP {
		t.Skip("this system has no sockets with paths")
	}
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "sub", "csi.sock")
	listen := func() (net.Listener, error) { return listen("unix://"+path, false, time.Hour) } // a slow process lives

	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v, want 0600", info.Mode(), err)
	}
	go func(l net.Listener) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}(l)
	if second, err := listen(); err == nil {
		second.Close()
		t.Error("a live socket was replaced")
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("the directory of the socket has %v", entries)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket still exists after Close: %v", err)
	}

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close() // as after SIGKILL
	if l, err = listen(); err != nil {
		t.Fatalf("a stale socket is not replaced: %v", err)
	}
	newer, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + "2", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("Close removed the socket of a newer driver: %v", err)
	}

	os.Remove(path)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, endpoint := range []string{
		"unix://" + path, "unix://" + dir, "unix://relative.sock", path, "", "http://x", "tcp://127.0.0.1:0",
		"unix://" + filepath.Join(dir, strings.Repeat("x", 108)),
	} {
		if l, err := Listen(endpoint, false); err == nil {
			l.Close()
			t.Errorf("Listen(%.60q) = nil", endpoint)
		}
	}
	if data, err := os.ReadFile(path); string(data) != "precious" {
		t.Errorf("a file at the endpoint holds %q, %v", data, err)
	}
	if l, err = Listen("tcp://127.0.0.1:0", true); err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// slow is a backend whose Create takes as long as a test chooses.
type slow struct {
	backend.Backend
	started, finish chan struct{}
	deaf            bool // Create ignores its context, as a call that waits for a stalled disk does
}

func (s *slow) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	close(s.started)
	cut := ctx.Done()
	if s.deaf {
		cut = nil
	}
	select {
	case <-s.finish:
		return backend.Volume{ID: "slow"}, nil
	case <-cut:
		return backend.Volume{}, ctx.Err()
	}
}

func TestServeDrains(t *testing.T) {
	for name, tc := range map[string]struct {
		ends bool // the call ends by itself
		deaf bool
		code codes.Code
	}{
		"a running call ends":         {true, false, codes.OK},
		"an endless call is stopped":  {false, false, codes.Unavailable},
		"a stalled call is abandoned": {false, true, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const drain = 10 * time.Second
				b := &slow{started: make(chan struct{}), finish: make(chan struct{}), deaf: tc.deaf}
				conn, stop, served := serveInMemory(t, b, &logBuffer{}, drain)
				answered := make(chan error)
				go func() {
					_, err := csi.NewControllerClient(conn).CreateVolume(context.Background(), createRequest("x"))
					answered <- err
				}()
				<-b.started
				stop()
				start := time.Now()
				if tc.ends {
					time.Sleep(drain - time.Second)
					close(b.finish)
				} else {
					defer close(b.finish)
				}
				if err := <-answered; status.Code(err) != tc.code {
					t.Errorf("the call = %v, want %s", err, tc.code)
				}
				if since := time.Since(start); !tc.ends && since != drain {
					t.Errorf("the call was stopped after %v, want %v", since, drain)
				}
				if tc.deaf { // gRPC waits for the handler
					return
				}
				if err := <-served; err != nil {
					t.Errorf("Serve = %v", err)
				}
			})
		})
	}
}

// attachesOnly is a backend with only the four required methods and Attacher.
type attachesOnly struct {
	slow
	backend.Attacher
}

func TestCapabilitiesFollowTheBackend(t *testing.T) {
	c := &controller{backend: &slow{}, topology: &topology{}}
	resp, err := c.ControllerGetCapabilities(context.Background(), nil)
	if err != nil || len(resp.GetCapabilities()) != 3 {
		t.Errorf("a backend with the four methods only has %v, %v", resp, err)
	}
	for name, call := range map[string]func() error{
		"ListVolumes": func() error { _, err := c.ListVolumes(context.Background(), nil); return err },
		"GetCapacity": func() error { _, err := c.GetCapacity(context.Background(), nil); return err },
		"ControllerPublishVolume": func() error {
			_, err := c.ControllerPublishVolume(context.Background(), nil)
			return err
		},
		"ControllerUnpublishVolume": func() error {
			_, err := c.ControllerUnpublishVolume(context.Background(), nil)
			return err
		},
		"CreateSnapshot": func() error { _, err := c.CreateSnapshot(context.Background(), nil); return err },
		"DeleteSnapshot": func() error { _, err := c.DeleteSnapshot(context.Background(), nil); return err },
		"GetSnapshot":    func() error { _, err := c.GetSnapshot(context.Background(), nil); return err },
		"ListSnapshots":  func() error { _, err := c.ListSnapshots(context.Background(), nil); return err },
		"ControllerModifyVolume": func() error {
			_,
				err := c.ControllerModifyVolume(context.Background(), nil)
			return err
		},
		"ControllerGetVolumeHealth": func() error {
			_,
				err := c.ControllerGetVolumeHealth(context.Background(), nil)
			return err
		},
		"ControllerListVolumeHealth": func() error {
			_, err := c.ControllerListVolumeHealth(context.Background(), nil)
			return err
		},
	} {
		if code := codeOf(call()); code != codes.Unimplemented {
			t.Errorf("%s = %s", name, code)
		}
	}
	if resp, err := (&controller{backend: &attachesOnly{}}).ControllerGetCapabilities(context.Background(),
		nil); err != nil || len(resp.GetCapabilities()) != 5 {
		t.Errorf("a backend that attaches and has no list has %v, %v", resp, err)
	}
	n := &node{backend: &slow{}, topology: &topology{}}
	if resp, err := n.NodeGetCapabilities(context.Background(), nil); err != nil || len(resp.GetCapabilities()) != 3 {
		t.Errorf("its Node service has %v, %v", resp, err)
	}
	if info, err := n.NodeGetInfo(context.Background(), nil); err != nil || info.GetAccessibleTopology() != nil {
		t.Errorf("a backend that is not local has the topology %v, %v", info, err)
	}
	if err := c.topology.checkMode(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER); err != nil {
		t.Errorf("a backend that is not local rejects many nodes: %v", err)
	}
}

func TestCapabilitiesOfABackendWithAllInterfaces(t *testing.T) {
	ctx := context.Background()
	for name, tc := range map[string]struct {
		change []func(*testDriver)
		plugin string
	}{
		"everywhere": {nil, "CONTROLLER_SERVICE GROUP_CONTROLLER_SERVICE SNAPSHOT_METADATA_SERVICE"},
		"on one node": {[]func(*testDriver){onOneNode},
			"CONTROLLER_SERVICE VOLUME_ACCESSIBILITY_CONSTRAINTS SNAPSHOT_ACCESSIBILITY_CONSTRAINTS " +
				"GROUP_CONTROLLER_SERVICE SNAPSHOT_METADATA_SERVICE"},
	} {
		d := startDriver(t, append(tc.change, inMemory)...)
		plugin, err := d.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
		d.want(codes.OK, err)
		var services []string
		for _, c := range plugin.GetCapabilities() {
			if c.GetService() != nil {
				services = append(services, c.GetService().GetType().String())
			}
		}
		if got := strings.Join(services, " "); got != tc.plugin {
			t.Errorf("%s: the plugin has %s, want %s", name, got, tc.plugin)
		}
		resp, err := d.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		d.want(codes.OK, err)
		missing := maps.Clone(csi.ControllerServiceCapability_RPC_Type_name)
		delete(missing, int32(csi.ControllerServiceCapability_RPC_UNKNOWN))
		for _, c := range resp.GetCapabilities() {
			delete(missing, int32(c.GetRpc().GetType()))
		}
		if len(missing) > 0 {
			t.Errorf("%s: the Controller service does not have %v", name, missing)
		}
	}
}

func TestHTTP(t *testing.T) {
	d := startDriver(t)
	d.create("v", capability(sharedMode))
	server := httptest.NewServer(d.driver.HTTP())
	defer server.Close()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	var body string
	// The metric has the state of the last check, which may be that before the driver was ready.
	await.True(t, "the last check found the driver ready", func() bool {
		_, body = get("/metrics")
		return strings.Contains(body, "causeway_ready 1")
	})
	for _, want := range []string{
		`causeway_csi_calls_total{code="OK",method="CreateVolume"} 1`,
		`causeway_csi_call_seconds_bucket{method="CreateVolume",le="+Inf"} 1`,
		"causeway_csi_calls_in_flight 0", "causeway_volumes 1", "causeway_promised_bytes 1.048576e+06",
		"causeway_storage_free_bytes ", "causeway_storage_free_inodes ", "causeway_ready 1",
		"causeway_swept_total 0", "causeway_trash_entries 0",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := get(path); code != 200 {
			t.Errorf("%s = %d %s", path, code, body)
		}
	}
	d.moveRoot()
	defer os.Rename(d.root+".away", d.root)
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, d.root) {
		t.Errorf("/readyz = %d %s without a root", code, body)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz = %d without a root: a restart would not help", code)
	}
}

func TestTracingIsOffByDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		on   bool
		fail bool
	}{
		"by default": {nil, false, false},
		"none": {map[string]string{"OTEL_TRACES_EXPORTER": "none",
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, false, false},
		"disabled": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, false,
			false},
		"an endpoint": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true, false},
		"grpc": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, true, false},
		"console":             {map[string]string{"OTEL_TRACES_EXPORTER": "console"}, true, false},
		"an unknown exporter": {map[string]string{"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, false, true},
		"an unknown protocol": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "udp"},
			false, true},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			traces, err := Tracing(context.Background(), testName, "test", slog.New(slog.DiscardHandler))
			if (err != nil) != tc.fail || (len(traces.Server) > 0) != tc.on || (len(traces.Client) > 0) != tc.on {
				t.Fatalf("Tracing = %d and %d options, %v", len(traces.Server), len(traces.Client), err)
			}
			if err == nil {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				traces.End(ctx)
			}
		})
	}
}

func FuzzPagingToken(f *testing.F) {
	f.Add("volume", int32(1))
	f.Add(nextToken("volume"), int32(0))
	f.Add("00000000.", int32(math.MaxInt32))
	f.Fuzz(func(t *testing.T, s string, entries int32) {
		if after, limit, err := parsePage(s, entries); err == nil &&
			(limit < 1 || limit > maxPage || (s != "" && nextToken(after) != s)) {
			t.Errorf("parsePage(%q, %d) = %q, %d", s, entries, after, limit)
		}
		if after, _, err := parsePage(nextToken(s), 1); err != nil || after != s {
			t.Errorf("parsePage(nextToken(%q)) = %q, %v", s, after, err)
		}
	})
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"pvc-1", "", "a\x00", "a\u0085", "..", strings.Repeat("x", 129), "\xff"} {
		f.Add(s)
	}
	banned := func(c rune) bool {
		return c <= 8 || c == 0xb || c == 0xc || (c >= 0xe && c <= 0x1f) || (c >= 0x7f && c <= 0x9f)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := checkName(s); (err == nil) != (len(s) <= 128 && !slices.ContainsFunc([]rune(s), banned)) {
			t.Errorf("checkName(%q) = %v", s, err)
		}
	})
}

func FuzzOwnKeys(f *testing.F) {
	f.Add("csi.storage.k8s.io/x", "kind")
	f.Add("storage.kubernetes.io/", "csi.storage.k8s.io")
	f.Fuzz(func(t *testing.T, a, b string) {
		for key := range ownKeys(map[string]string{a: "1", b: "2"}) {
			if strings.HasPrefix(key, "csi.storage.k8s.io/") || strings.HasPrefix(key, "storage.kubernetes.io/") ||
				(key != a && key != b) {
				t.Errorf("%q is left of %q and %q", key, a, b)
			}
		}
	})
}
