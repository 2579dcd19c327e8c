package smb

import (
	"context"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

const (
	probeLimit = 2 * time.Second  // of a probe of a server
	probeKept  = 10 * time.Second // for which its result is used
	maxServers = 10000            // whose probes a process remembers
)

// prober asks servers whether they answer, each at most once at a time.
type prober struct {
	answers func(ctx context.Context, source mounter.ShareSource) error

	mu      sync.Mutex
	servers map[string]*probe
}

type probe struct {
	done  chan struct{}
	err   error
	ended time.Time
}

// probe returns the error of the last probe of a server, which is not old, or of a new one.
func (p *prober) probe(ctx context.Context, source mounter.ShareSource) error {
	source.Share, source.Path = "", ""
	server := source.String()
	p.mu.Lock()
	last := p.servers[server]
	if last == nil || (!last.ended.IsZero() && time.Since(last.ended) > probeKept) {
		last = &probe{done: make(chan struct{})}
		if p.servers == nil || len(p.servers) > maxServers {
			p.servers = map[string]*probe{}
		}
		p.servers[server] = last
		go p.run(last, source)
	}
	p.mu.Unlock()
	select {
	case <-last.done:
		return last.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *prober) run(current *probe, source mounter.ShareSource) {
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	err := p.answers(ctx, source)
	p.mu.Lock()
	defer p.mu.Unlock()
	current.err, current.ended = err, time.Now()
	close(current.done)
}
