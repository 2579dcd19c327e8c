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
	errIdle  = errors.New("no data for")
	errTotal = errors.New("the copy takes longer than")
	errBytes = errors.New("the stream has more bytes than")

	errWorker = errors.New("the worker has ended, perhaps with its container")
)

// relay is a stream between a client and a worker.
type relay struct {
	client, worker wire.Messages
	limits         Limits
	bytes          atomic.Int64
	ended          atomic.Bool // the stream has an End message
	stop           context.CancelCauseFunc
	writing        sync.Mutex // held by writes to the client
}

// Relay passes messages between a client and a worker until the worker sends a Result, either side
// ends, or a limit is exceeded. closeBoth ends both connections, so that their Read returns; the
// worker then removes an unfinished copy. Before, the client gets a Result with the error.
func Relay(ctx context.Context, client, worker wire.Messages, limits Limits, closeBoth func()) Result {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &relay{client: client, worker: worker, limits: limits, stop: stop}
	if limits.Total > 0 {
		timer := time.AfterFunc(limits.Total, func() { stop(fmt.Errorf("%w %s", errTotal, limits.Total)) })
		defer timer.Stop()
	}
	results, clients := make(chan Result, 1), make(chan error, 1)
	var group sync.WaitGroup
	group.Go(func() { results <- r.fromWorker() })
	group.Go(func() { clients <- r.fromClient() })
	go r.watch(ctx)
	result := r.await(ctx, results, clients)
	if result.Err != nil && result.Message.Type == "" {
		r.tell(result.Err)
	}
	closeBoth()
	group.Wait()
	result.Bytes = r.bytes.Load()
	return result
}

// await waits for the end of the stream.
func (r *relay) await(ctx context.Context, results <-chan Result, clients <-chan error) Result {
	for {
		select {
		case result := <-results:
			return result
		case err := <-clients:
			if !errors.Is(err, errWorker) {
				return Result{Err: err}
			} // else fromWorker has the reason
		case <-ctx.Done():
			return Result{Err: context.Cause(ctx)}
		}
	}
}

// tell sends the client the error of a stream that ended without a Result of the worker.
func (r *relay) tell(err error) {
	code := wire.Unavailable
	switch {
	case errors.Is(err, errBytes):
		code = wire.OutOfRange
	case errors.Is(err, errIdle), errors.Is(err, errTotal):
		code = wire.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = wire.Aborted
	}
	message, failed := json.Marshal(wire.Message{Type: wire.Result, Code: code, Text: err.Error()})
	if failed == nil && r.writing.TryLock() { // else a write to the client hangs
		defer r.writing.Unlock()
		r.client.Write(append([]byte{byte(wire.Control)}, message...)) // the client may be gone
	}
}

// write passes a message to the client.
func (r *relay) write(message []byte) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	return r.client.Write(message)
}

// fromWorker passes messages to the client, up to the Result.
func (r *relay) fromWorker() Result {
	for {
		message, err := r.worker.Read()
		if errors.Is(err, io.EOF) || err == nil && len(message) == 0 {
			return Result{Err: errWorker}
		}
		if err != nil {
			return Result{Err: fmt.Errorf("read from the worker: %w", err)}
		}
		if err := r.count(message); err != nil {
			return Result{Err: err}
		}
		if err := r.write(message); err != nil {
			return Result{Err: fmt.Errorf("write to the client: %w", err)}
		}
		if m, ok := control(message); ok && m.Type == wire.Result {
			return Result{Message: m, Err: m.Err()}
		}
	}
}

// fromClient passes messages to the worker. It returns an error at the end of the client.
func (r *relay) fromClient() error {
	for {
		message, err := r.client.Read()
		if err != nil {
			return fmt.Errorf("the client has ended: %w", err)
		}
		if err := r.count(message); err != nil {
			return err
		}
		if err := r.worker.Write(message); err != nil {
			return fmt.Errorf("%w: %w", errWorker, err)
		}
	}
}

// count counts the bytes of the stream, and sees its end.
func (r *relay) count(message []byte) error {
	if len(message) > 0 && wire.Kind(message[0]) == wire.Data {
		if n := r.bytes.Add(int64(len(message) - 1)); r.limits.Bytes > 0 && n > r.limits.Bytes {
			return fmt.Errorf("%w %d", errBytes, r.limits.Bytes)
		}
	} else if m, ok := control(message); ok && m.Type == wire.End {
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

// watch stops a stream that does not move.
func (r *relay) watch(ctx context.Context) {
	if r.limits.Idle <= 0 {
		return
	}
	tick := time.NewTicker(r.limits.Idle)
	defer tick.Stop()
	for last := int64(-1); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := r.bytes.Load()
		if r.ended.Load() {
			return
		}
		if now == last {
			r.stop(fmt.Errorf("%w %s", errIdle, r.limits.Idle))
			return
		}
		last = now
	}
}
