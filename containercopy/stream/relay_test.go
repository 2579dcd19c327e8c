package stream

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/internal/pipe"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// ends are the ends of a relay, as its client and its worker see them.
type ends struct {
	client, worker           *wire.Stream
	closeClient, closeWorker func()
	cancel                   context.CancelFunc
	finished                 *atomic.Bool // the relay has called finished
	result                   chan Result
}

func start(t *testing.T, l Limits) ends {
	t.Helper()
	client, ofClient := pipe.New()
	worker, ofWorker := pipe.New()
	ctx, cancel := context.WithCancel(t.Context())
	e := ends{wire.NewStream(client), wire.NewStream(worker), client.Close, worker.Close, cancel, new(atomic.Bool),
		make(chan Result, 1)}
	t.Cleanup(cancel)
	go func() {
		e.result <- Relay(ctx, ofClient, ofWorker, l, func() { e.finished.Store(true) }, ofWorker.Close, ofClient.Close)
	}()
	return e
}

func (e ends) wantErr(t *testing.T, words string) {
	t.Helper()
	if r := <-e.result; r.Err == nil || !strings.Contains(r.Err.Error(), words) {
		t.Errorf("Relay = %+v, want an error with %q", r, words)
	}
}

// wantFailure wants a Result with this code at the client.
func (e ends) wantFailure(t *testing.T, code wire.Code) {
	t.Helper()
	var f *wire.Failure
	if m, err := e.client.Await(wire.Result, nil); !errors.As(err, &f) || f.Code != code {
		t.Errorf("the client gets %+v, %v, want %s", m, err, code)
	}
}

var end = wire.EndOf(archive.Sum{Size: 4}, archive.Counts{Entries: 1})

func TestRelayFromAContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{From: true, Bytes: 4, Idle: time.Second, Total: time.Hour})
		go func() {
			e.worker.Write([]byte("data"))
			e.worker.Send(end)
			if _, err := e.worker.Await(wire.Ack, nil); err != nil {
				t.Error(err)
			}
			e.worker.Send(wire.Message{Type: wire.Result, Size: 4})
			e.closeWorker()
		}()
		body := e.client.Body(nil)
		if got, err := io.ReadAll(body); string(got) != "data" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		time.Sleep(time.Minute) // the client verifies the copy
		e.client.Send(wire.Message{Type: wire.Ack})
		if e.finished.Load() {
			t.Error("the copy was finished before its Result")
		}
		if m, err := e.client.Await(wire.Result, nil); err != nil || m.Size != 4 || !e.finished.Load() {
			t.Errorf("Await = %+v, %v, finished: %v", m, err, e.finished.Load())
		}
		if r := <-e.result; r.Err != nil || r.Bytes != 4 || r.Message.Size != 4 {
			t.Errorf("Relay = %+v", r)
		}
	})
}

func TestRelayToAContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{})
		go func() {
			io.ReadAll(e.worker.Body(nil))
			e.worker.Send(wire.Message{Type: wire.Progress, Size: 4})
			e.worker.Send(wire.Message{Type: wire.Result, Code: wire.AlreadyExists, Text: "exists"})
		}()
		e.client.Write([]byte("data"))
		e.client.Send(end)
		e.wantFailure(t, wire.AlreadyExists)
		if !e.finished.Load() {
			t.Error("the client got the Result before finished was called")
		}
		e.wantErr(t, "exists")
	})
}

// TestLimitsOfARelay: the client gets the reason.
func TestLimitsOfARelay(t *testing.T) {
	for name, tc := range map[string]struct {
		limits Limits
		run    func(e ends)
		code   wire.Code
		words  string
	}{
		"bytes from the client": {Limits{Bytes: 3}, func(e ends) { e.client.Write([]byte("data")) }, wire.OutOfRange, "more bytes than 3"},
		"bytes of the worker":   {Limits{Bytes: 3}, func(e ends) { e.worker.Write([]byte("data")) }, wire.OutOfRange, "more bytes than 3"},
		"a client that stalls, with progress": {Limits{Idle: time.Minute, Total: time.Hour}, func(e ends) {
			e.client.Write([]byte("data"))
			go func() {
				for e.worker.Send(wire.Message{Type: wire.Progress, Size: 4}) == nil {
					time.Sleep(time.Second)
				}
			}()
		}, wire.DeadlineExceeded, "no data for 1m"},
		"slow drops": {Limits{Idle: time.Minute, Total: time.Hour}, func(e ends) {
			go func() {
				for {
					if _, err := e.client.Write([]byte("d")); err != nil {
						return
					}
					if r, err := e.worker.Receive(); err != nil || string(r.Data) != "d" {
						return
					}
					time.Sleep(30 * time.Second)
				}
			}()
		}, wire.DeadlineExceeded, "longer than 1h"},
		"the agent ends": {Limits{}, func(e ends) { e.cancel() }, wire.Aborted, "canceled"},
		"the worker is killed": {Limits{}, func(e ends) { e.worker.Write([]byte("da")); e.closeWorker() }, wire.Unavailable,
			"worker has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, tc.limits)
				tc.run(e)
				for { // messages before the end
					r, err := e.client.Receive()
					if err != nil {
						t.Fatal(err)
					}
					if r.Message.Type != wire.Result {
						continue
					}
					if r.Message.Code != tc.code || !strings.Contains(r.Message.Text, tc.words) {
						t.Errorf("the client gets %+v, want %s, %q", r.Message, tc.code, tc.words)
					}
					break
				}
				e.wantErr(t, tc.words)
				if _, err := e.worker.Receive(); err == nil {
					if _, err = e.worker.Receive(); err == nil {
						t.Error("the worker is still connected")
					}
				}
				time.Sleep(time.Minute) // for the goroutines of run
			})
		})
	}
}

var errNoBuffers = errors.New("no buffer space available")

// TestAReasonBehindAnotherMessage arrives, although a write to the client is in progress at the
// end.
func TestAReasonBehindAnotherMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{})
		go func() {
			for e.worker.Send(wire.Message{Type: wire.Progress, Size: 4}) == nil {
			}
		}()
		synctest.Wait() // the client reads nothing yet
		e.cancel()
		time.Sleep(tellLimit / 2)
		e.wantFailure(t, wire.Aborted)
		e.wantErr(t, "canceled")
	})
}

// TestRefuse waits for the end of the client, which still sends, and not for ever.
func TestRefuse(t *testing.T) {
	for name, closes := range map[string]bool{"a client that closes": true, "a client that stays": false} {
		synctest.Test(t, func(t *testing.T) {
			client, ofClient := pipe.New()
			began, s := time.Now(), wire.NewStream(client)
			go func() {
				s.Write([]byte("data"))
				s.Write([]byte("data"))
				var f *wire.Failure
				if _, err := s.Await(wire.Result, nil); !errors.As(err, &f) || f.Code != wire.NotFound {
					t.Errorf("%s: %v", name, err)
				}
				if closes {
					client.Close()
				}
			}()
			Refuse(ofClient, wire.NotFound, "gone")
			if waited := time.Since(began); closes != (waited < lingerLimit) || waited > lingerLimit {
				t.Errorf("%s: it waited for %s", name, waited)
			}
			ofClient.Close()
		})
	}
}

// deaf is a worker whose kernel refuses each packet.
type deaf struct{ pipe.End }

func (deaf) Write([]byte) error { return errNoBuffers }

// TestAPacketThatCannotBeSent ends the stream with its reason: a worker that lives sends none.
func TestAPacketThatCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ofClient := pipe.New()
		_, ofWorker := pipe.New()
		began, ended := time.Now(), make(chan Result)
		go func() {
			ended <- Relay(t.Context(), ofClient, deaf{ofWorker}, Limits{Idle: time.Minute}, func() {}, ofWorker.Close,
				ofClient.Close)
		}()
		s := wire.NewStream(client)
		s.Write([]byte("data"))
		var f *wire.Failure
		if _, err := s.Await(wire.Result, nil); !errors.As(err, &f) || !strings.Contains(f.Text, errNoBuffers.Error()) {
			t.Errorf("the client gets %v", err)
		}
		if r := <-ended; !errors.Is(r.Err, errNoBuffers) || time.Since(began) > 10*time.Second {
			t.Errorf("Relay = %+v after %s", r, time.Since(began))
		}
	})
}

// TestAClientThatAcknowledgesNothing does not hold its slot, and the time of a slow client is
// enough.
func TestAClientThatAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{From: true, Idle: time.Second, Total: time.Hour})
		go e.worker.Send(end)
		if _, err := io.ReadAll(e.client.Body(nil)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		e.client.Send(end) // is not the end of this stream
		e.wantErr(t, "no acknowledgment")
		if waited := time.Since(began); waited < 5*time.Minute || waited > 6*time.Minute {
			t.Errorf("it waited for %s", waited)
		}
	})
}

// TestAWorkerThatDoesNotMoveTheCopy does not hold its slot until the limit of the whole copy.
func TestAWorkerThatDoesNotMoveTheCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{Idle: time.Second, Total: 3 * time.Hour})
		go func() {
			io.ReadAll(e.worker.Body(nil))
			for range 10 { // it moves files
				time.Sleep(10 * time.Minute)
				e.worker.Send(wire.Message{Type: wire.Progress, Size: 4})
			}
		}()
		began := time.Now()
		e.client.Send(end)
		e.wantFailure(t, wire.DeadlineExceeded)
		if waited := time.Since(began); waited < 115*time.Minute || waited > 117*time.Minute {
			t.Errorf("it waited for %s", waited)
		}
		e.wantErr(t, "did not finish the copy")
		if e.finished.Load() {
			t.Error("the slot was freed, and the worker works")
		}
	})
}

// TestTheIdleLimit is the time without data.
func TestTheIdleLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{Idle: time.Minute})
		go func() {
			for {
				if _, err := e.worker.Receive(); err != nil {
					return
				}
			}
		}()
		time.Sleep(50 * time.Second)
		e.client.Write([]byte("data"))
		began := time.Now()
		e.wantErr(t, "no data for 1m0s")
		if waited := time.Since(began) - lingerLimit; waited < time.Minute || waited > 70*time.Second {
			t.Errorf("it waited for %s", waited)
		}
	})
}

// TestAClientThatReadsNothing cannot hold its slot: the stream ends, although a write to it hangs.
func TestAClientThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{Idle: time.Minute})
		go func() {
			for {
				if _, err := e.worker.Write([]byte("data")); err != nil {
					return
				}
			}
		}()
		e.wantErr(t, "no data for")
	})
}

// TestTheEndOfTheClient ends the worker.
func TestTheEndOfTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Limits{})
		e.client.Write([]byte("data"))
		e.closeClient()
		e.wantErr(t, "client has ended")
		if _, err := io.ReadAll(e.worker.Body(nil)); err == nil {
			t.Error("the worker is still connected")
		}
	})
}
