package sidecar

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Problem is a failure that lasts while this process keeps trying. The log has it at once, and then at most every 15 s.
type Problem struct {
	mu     sync.Mutex
	err    error
	logged time.Time
}

// Report notes the error of the last try, and logs it with message. nil means that the last try succeeded.
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
