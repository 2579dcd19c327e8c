package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/container"
	"github.com/causeway-csi/causeway/containercopy/cri"
	"github.com/causeway-csi/causeway/containercopy/quota"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Handler serves the streams of copies.
func (a *Agent) Handler() http.Handler {
	return stream.Handler(a.tickets, func(_ *http.Request, t *transfer, client *stream.Socket) { a.serve(t, client) })
}

// Wait returns when all streams have ended, or with the error of ctx. Their clients have their
// results then.
func (a *Agent) Wait(ctx context.Context) error { return a.active.Wait(ctx) }

// serve makes a copy over the connection of its caller.
func (a *Agent) serve(t *transfer, client *stream.Socket) {
	defer a.active.Begin()()
	t.mu.Lock()
	canceled := t.begun
	t.begun = true
	w := t.worker
	t.mu.Unlock()
	result := stream.Result{Err: errors.New("the copy has panicked")} // net/http recovers it
	defer func() { a.finish(t, w, result) }()
	if canceled {
		result.Err = errCanceled
		stream.Refuse(client, wire.Aborted, errCanceled.Error())
		return
	}
	var err error
	if w == nil {
		w, err = a.start(t.ctx, t)
	} else {
		err = wire.NewStream(w).Send(wire.Message{Type: wire.Start})
		if err != nil && w.Gone() {
			err = fmt.Errorf("%w: %w", container.ErrGone, err)
		}
	}
	if err != nil {
		result.Err = err
		if w == nil { // the client may begin its next copy at once
			t.slot.Release()
		}
		stream.Refuse(client, nameOf(status.Code(statusOf(err))), err.Error())
		return
	}
	stopped := make(chan struct{})
	result = stream.Relay(t.ctx, client, w, stream.Limits{From: t.spec.From, Bytes: a.config.Archive.Bytes,
		Idle: a.config.Idle, Total: a.config.Total}, t.slot.Release, func() {
		go func() { w.Stop(); close(stopped) }() // which also ends Read of the worker
	}, func() { client.Close() })
	if w.Gone() && errors.Is(result.Err, stream.ErrWorker) {
		result.Err = fmt.Errorf("%w: %w", container.ErrGone, result.Err)
	}
	<-stopped
}

// startLimit is the time for the runtime to describe a container.
const startLimit = 30 * time.Second

// start starts the worker of a copy.
func (a *Agent) start(ctx context.Context, t *transfer) (Worker, error) {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	find := func(ctx context.Context) (cri.Container, error) {
		return a.config.Runtime.Find(ctx, t.container, t.pod)
	}
	return a.config.Starter.Start(limited, t.container, t.found, find, t.spec)
}

// precompute starts the worker of a copy, which reads its source, and returns the sum of the
// stream.
func (a *Agent) precompute(ctx context.Context, t *transfer) (archive.Sum, error) {
	ctx, cancel := context.WithTimeout(ctx, a.config.Total)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	w, err := a.start(ctx, t)
	if err != nil {
		return archive.Sum{}, err
	}
	t.mu.Lock()
	t.worker = w
	ended := t.ended
	t.mu.Unlock()
	if ended { // by CancelCopy, which did not know the worker
		w.Stop()
		return archive.Sum{}, context.Cause(t.ctx)
	}
	defer context.AfterFunc(ctx, func() { w.Stop() })() // ends Await
	m, err := wire.NewStream(w).Await(wire.Sum, nil)
	if ctx.Err() != nil {
		return archive.Sum{}, ctx.Err()
	}
	if err != nil {
		return archive.Sum{}, err
	}
	return m.Sum()
}

// finish ends a copy: it stops the worker, frees the slot at its end, and reports the result. Only the
// first call has an effect.
func (a *Agent) finish(t *transfer, w Worker, r stream.Result) {
	t.mu.Lock()
	first := !t.ended
	t.ended = true
	t.mu.Unlock()
	if !first {
		return
	}
	t.cancel(nil)
	if w == nil || w.Stop() {
		t.slot.Release()
	} else {
		t.slot.Stuck()
		go func() {
			<-w.Ended()
			t.slot.Release()
		}()
	}
	a.mu.Lock()
	delete(a.copies, t.id)
	a.mu.Unlock()
	seconds := time.Since(t.created).Seconds()
	a.config.Log.Info("copy", "copy", t.id, "auditID", t.caller.GetAuditId(), "user", t.caller.GetName(), "namespace",
		t.pod.Namespace, "pod", t.pod.Name, "podUID", t.pod.UID, "container", t.container, "from", t.spec.From, "path",
		t.spec.Path, "bytes", r.Bytes, "seconds", seconds, "error", r.Err)
	a.config.Finished(Report{From: t.spec.From, Bytes: r.Bytes, Seconds: seconds, Err: r.Err})
}

// statuses are the codes of errors before a stream.
var statuses = []struct {
	err  error
	code codes.Code
}{
	{quota.ErrBusy, codes.ResourceExhausted}, {stream.ErrTooMany, codes.ResourceExhausted},
	{stream.ErrClosed, codes.Unavailable}, {container.ErrRaised, codes.FailedPrecondition},
	{cri.ErrNotFound, codes.NotFound}, {cri.ErrNotRunning, codes.FailedPrecondition},
	{cri.ErrNotNative, codes.Unimplemented}, {cri.ErrUnavailable, codes.Unavailable},
	{container.ErrGone, codes.FailedPrecondition}, {container.ErrNotContained, codes.Unimplemented},
	{context.DeadlineExceeded, codes.DeadlineExceeded}, {context.Canceled, codes.Aborted},
	{wire.ErrNoResult, codes.Unavailable}, {errEnds, codes.Unavailable},
}

// statusOf returns an error with the code of its class.
func statusOf(err error) error {
	var f *wire.Failure
	if errors.As(err, &f) {
		for code, name := range names {
			if name == f.Code {
				return status.Error(code, f.Text)
			}
		}
	}
	return status.Error(codeOf(err), err.Error())
}

// codeOf returns the code of the class of an error that has no Failure.
func codeOf(err error) codes.Code {
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return codes.Internal
}

// names are the codes of a Result by those of gRPC.
var names = map[codes.Code]wire.Code{
	codes.InvalidArgument: wire.InvalidArgument, codes.NotFound: wire.NotFound,
	codes.AlreadyExists: wire.AlreadyExists, codes.PermissionDenied: wire.PermissionDenied,
	codes.ResourceExhausted: wire.ResourceExhausted, codes.FailedPrecondition: wire.FailedPrecondition,
	codes.Aborted: wire.Aborted, codes.OutOfRange: wire.OutOfRange, codes.DataLoss: wire.DataLoss,
	codes.DeadlineExceeded: wire.DeadlineExceeded, codes.Unavailable: wire.Unavailable,
	codes.Unimplemented: wire.Unimplemented,
}

// nameOf returns the code of a Result.
func nameOf(c codes.Code) wire.Code {
	if name, ok := names[c]; ok {
		return name
	}
	return wire.Internal
}
