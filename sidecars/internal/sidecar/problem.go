package sidecar

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Problem is a failure that lasts while this process retries. It is logged at once, and then every
// 15 s at most.
type Problem struct {
	mu     sync.Mutex
	err    error
	logged time.Time
}

// Report records the error of the last try and logs it with message. A nil err means success.
func (p *Problem) Report(ctx context.Context, message string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	if err == nil || !p.logged.IsZero() && time.Since(p.logged) < stillWaiting {
		return
	}
	p.logged = time.Now()
	klog.FromContext(ctx).Error(err, message)
}

// Err returns the error of the last try.
func (p *Problem) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
