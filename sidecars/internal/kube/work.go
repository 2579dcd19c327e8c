package kube

import (
	"errors"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// Work has the flags that upstream's controllers with a queue share.
type Work struct {
	Timeout time.Duration // of a call to the driver
	Workers int
	Retry   Retry
	Limits  Limits

	workersFlag string
}

// WorkFlags has the values in which the shared flags of two controllers differ.
type WorkFlags struct {
	Timeout      time.Duration // default
	TimeoutUsage string
	Workers      int    // default
	WorkersFlag  string // name
	WorkersUsage string
}

// Flags declares the flags.
func (w *Work) Flags(f *sidecar.Flags, o WorkFlags) {
	w.workersFlag = o.WorkersFlag
	f.Duration(&w.Timeout, "timeout", o.Timeout, o.TimeoutUsage)
	f.Int(&w.Workers, o.WorkersFlag, o.Workers, o.WorkersUsage)
	w.Retry.Flags(f)
	w.Limits.Flags(f)
}

// Validate returns the errors of the flags.
func (w *Work) Validate() error {
	return errors.Join(Positive("timeout", w.Timeout), Positive(w.workersFlag, w.Workers), w.Retry.Validate(),
		w.Limits.Validate())
}

// Limiter returns the limiter of a queue, which delays retries.
func (w *Work) Limiter() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](w.Retry.Start, w.Retry.Max)
}
