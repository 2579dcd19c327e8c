package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Limits bound a stream.
type Limits struct {
	From  bool          // the stream is that of the worker, and the client acknowledges it
	Bytes int64         // of the tar stream; 0: no limit
	Idle  time.Duration // without a byte of the stream, before its end; 0: no limit
	Total time.Duration // 0: no limit
}

// Result is the end of a stream.
type Result struct {
	Bytes   int64 // of the tar stream
	Message wire.Message
	Err     error // nil: the copy has succeeded
}

// Errors of a Result, beside wire.Failure.
var (
	// ErrClient: the client has ended, or its connection.
	ErrClient = errors.New("the client has ended")
	// ErrWorker: the worker has ended without a Result.
	ErrWorker = errors.New("the worker has ended, perhaps with its container")

	errOver  = errors.New("the stream has ended")
	errIdle  = errors.New("no data for")
	errAck   = errors.New("no acknowledgment of the copy for")
	errMove  = errors.New("the worker did not finish the copy, and reported nothing for")
	errTotal = errors.New("the copy takes longer than")
	errBytes = errors.New("the stream has more bytes than")
)

// CodeOf returns the code of the error of a Result.
func CodeOf(err error) wire.Code {
	var f *wire.Failure
	switch {
	case errors.As(err, &f):
		return f.Code
	case errors.Is(err, errBytes):
		return wire.OutOfRange
	case errors.Is(err, errIdle), errors.Is(err, errAck), errors.Is(err, errMove), errors.Is(err, errTotal):
		return wire.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return wire.Aborted
	}
	return wire.Unavailable
}

// relay is a stream between a client and a worker.
type relay struct {
	client, worker wire.Messages
	limits         Limits
	bytes          atomic.Int64
	ended          atomic.Bool  // the stream has an End message
	progress       atomic.Int64 // messages of the worker
	over           atomic.Bool  // only the message of tell follows
	finished       func()       // called before the client gets the Result of the worker
	stop           context.CancelCauseFunc
	gone           chan struct{} // closed at the end of the client
	writing        sync.Mutex    // held by writes to the client
}

// Relay passes messages between a client and a worker until the worker sends a Result, either side
// ends, or a limit is exceeded. Before, the client gets a Result with the error. finished is called
// before the client gets the Result of the worker, which needs nothing any more: the client may
// begin its next copy at once. closeWorker and closeClient end the connections, so that their Read
// returns; the worker then removes an unfinished copy.
func Relay(ctx context.Context, client, worker wire.Messages, limits Limits,
	finished, closeWorker, closeClient func()) Result {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &relay{client: client, worker: worker, limits: limits, finished: finished, stop: stop,
		gone: make(chan struct{})}
	if limits.Total > 0 {
		timer := time.AfterFunc(limits.Total, func() { stop(fmt.Errorf("%w %s", errTotal, limits.Total)) })
		defer timer.Stop()
	}
	results, errs := make(chan Result, 1), make(chan error, 1)
	var group sync.WaitGroup
	group.Go(func() { results <- r.fromWorker() })
	group.Go(func() { defer close(r.gone); errs <- r.fromClient(); r.discard() })
	go r.watch(ctx)
	result := r.await(ctx, results, errs)
	if result.Err != nil && result.Message.Type == "" {
		r.tell(result.Err)
	}
	closeWorker()
	r.linger()
	closeClient()
	group.Wait()
	result.Bytes = r.bytes.Load()
	return result
}

// lingerLimit is the time in which a client takes the last message, and closes the connection.
const lingerLimit = 2 * time.Second

// await waits for the end of the stream.
func (r *relay) await(ctx context.Context, results <-chan Result, errs <-chan error) Result {
	var refused error
	var late <-chan time.Time
	for {
		select {
		case result := <-results:
			return result
		case <-late:
			return Result{Err: refused}
		case refused = <-errs:
			if !errors.Is(refused, ErrWorker) {
				return Result{Err: refused}
			}
			late = time.After(lingerLimit) // the worker may have sent the reason
		case <-ctx.Done():
			return Result{Err: context.Cause(ctx)}
		}
	}
}

// tell sends the client the error of a stream that ended without a Result of the worker.
func (r *relay) tell(err error) {
	r.over.Store(true)
	for end := time.Now().Add(tellLimit); !r.writing.TryLock(); time.Sleep(tellLimit / 100) {
		if time.Now().After(end) { // a write to the client hangs
			return
		}
	}
	defer r.writing.Unlock()
	// An error of the write is that the client is gone.
	wire.NewStream(r.client).Send(wire.Message{Type: wire.Result, Code: CodeOf(err), Text: err.Error()})
}

// tellLimit is the time for a message to the client that is being written, such as one of progress.
const tellLimit = time.Second

// Refuse sends a client a Result with an error in the place of a stream, and waits until it is
// read. The caller closes the connection.
func Refuse(client wire.Messages, code wire.Code, text string) {
	wire.NewStream(client).Send(wire.Message{Type: wire.Result, Code: code, Text: text}) // as in tell
	r := &relay{client: client, gone: make(chan struct{})}
	go func() { defer close(r.gone); r.discard() }()
	r.linger()
}

// linger waits for the end of the client. Unread data would be a reset of the connection, and the
// last message could be lost.
func (r *relay) linger() {
	select {
	case <-r.gone:
	case <-time.After(lingerLimit):
	}
}

// write passes a message to the client.
func (r *relay) write(message []byte) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.over.Load() {
		return errOver
	}
	return r.client.Write(message)
}

// fromWorker passes messages to the client, up to the Result.
func (r *relay) fromWorker() Result {
	for {
		message, err := r.worker.Read()
		if errors.Is(err, io.EOF) || err == nil && len(message) == 0 {
			return Result{Err: ErrWorker}
		}
		if err != nil {
			return Result{Err: fmt.Errorf("read from the worker: %w", err)}
		}
		if err := r.count(message, true); err != nil {
			return Result{Err: err}
		}
		r.progress.Add(1)
		m, ok := control(message)
		last := ok && m.Type == wire.Result
		if last {
			r.finished()
		}
		if err := r.write(message); err != nil {
			return Result{Err: fmt.Errorf("%w: %w", ErrClient, err)}
		}
		if last {
			return Result{Message: m, Err: m.Err()}
		}
	}
}

// fromClient passes messages to the worker. It returns an error at the end of the client.
func (r *relay) fromClient() error {
	for {
		message, err := r.client.Read()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrClient, err)
		}
		if err := r.count(message, false); err != nil {
			return err
		}
		if err := r.worker.Write(message); err != nil {
			return fmt.Errorf("%w: %w", ErrWorker, err)
		}
	}
}

// discard reads the rest of the client.
func (r *relay) discard() {
	for {
		if _, err := r.client.Read(); err != nil {
			return
		}
	}
}

// count counts the bytes of the stream, and sees its end.
func (r *relay) count(message []byte, fromWorker bool) error {
	if len(message) > 0 && wire.Kind(message[0]) == wire.Data {
		if n := r.bytes.Add(int64(len(message) - 1)); r.limits.Bytes > 0 && n > r.limits.Bytes {
			return fmt.Errorf("%w %d", errBytes, r.limits.Bytes)
		}
	} else if m, ok := control(message); ok && m.Type == wire.End && fromWorker == r.limits.From {
		r.ended.Store(true)
	}
	return nil
}

// control returns a Control message.
func control(message []byte) (m wire.Message, ok bool) {
	if len(message) == 0 || wire.Kind(message[0]) != wire.Control {
		return m, false
	}
	return m, json.Unmarshal(message[1:], &m) == nil
}

// Times between the end of a stream and the next message.
const (
	// ackLimit: a client acknowledges a copy that is durable and at its place.
	ackLimit = 5 * time.Minute
	// moveLimit: a worker reports its progress while it moves a copy to its place. It reports none
	// while a filesystem writes out its data.
	moveLimit = 15 * time.Minute
)

// watch stops a stream that does not move.
func (r *relay) watch(ctx context.Context) {
	idle := r.limits.Idle
	if idle <= 0 {
		return
	}
	limit, late := moveLimit, errMove
	if r.limits.From {
		limit, late = ackLimit, errAck
	}
	tick := time.NewTicker(max(idle/16, time.Millisecond))
	defer tick.Stop()
	last, moved := int64(0), time.Now()
	ended := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !ended && r.ended.Load() {
			ended, moved = true, time.Now()
		}
		now := r.bytes.Load()
		if ended && !r.limits.From {
			now = r.progress.Load()
		}
		switch still := time.Since(moved); {
		case now != last:
			last, moved = now, time.Now()
		case ended && still > limit:
			r.stop(fmt.Errorf("%w %s", late, limit))
			return
		case !ended && still > idle:
			r.stop(fmt.Errorf("%w %s", errIdle, idle))
			return
		}
	}
}
