package smb

import (
	"context"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// space is the space of the filesystem of a share.
type space struct {
	total, available int64 // bytes
	err              error
}

// spaces keeps the space of each share in the file of shares, for the metrics.
type spaces struct {
	mu       sync.Mutex
	bySource map[string]space
}

// measure asks for the space of a source.
func (b *Backend) measure(ctx context.Context, source mounter.ShareSource) (u space) {
	s, err := b.store(ctx, source, nil, client.Calls)
	if err != nil {
		return space{err: err}
	}
	defer s.close()
	u.total, u.available, u.err = s.share.Space(ctx, source.Path)
	return u
}

// watch measures the shares in the file of shares again and again, and empties their trash: a
// process that has ended may have left something.
func (b *Backend) watch(ctx context.Context) {
	for i := 0; ; i++ {
		b.measureAll(ctx)
		if i%trashRounds == 0 {
			for _, source := range b.shares.sources() {
				b.emptyTrash(source, nil)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(spaceInterval):
		}
	}
}

func (b *Backend) measureAll(ctx context.Context) {
	var group sync.WaitGroup
	var mu sync.Mutex
	all := map[string]space{}
	for _, source := range b.shares.sources() {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, spaceLimit)
			defer cancel()
			u := b.measure(ctx, source)
			mu.Lock()
			defer mu.Unlock()
			all[source.String()] = u
		})
	}
	group.Wait()
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	b.space.bySource = all
}

const (
	spaceInterval = time.Minute
	trashRounds   = 60 // intervals between two rounds of the trash
	spaceLimit    = 10 * time.Second
)

// Metrics returns the space of the shares in the file of shares, at most a minute old, and the
// copies of this process. A share that could not be measured has the values 0.
func (b *Backend) Metrics() (all []backend.Metric) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	for _, source := range b.shares.sources() {
		u, measured := b.space.bySource[source.String()]
		up := 0.0
		if measured && u.err == nil {
			up = 1
		}
		gauge := func(name, help string, value float64) {
			all = append(all, backend.Metric{Name: name, Help: help, Value: value,
				Labels: map[string]string{"source": source.String()}})
		}
		gauge("share_up", "1 if the controller could use the share when it last measured the share, otherwise 0.", up)
		gauge("share_size_bytes", "Size of the filesystem of the share.", float64(u.total))
		gauge("share_available_bytes", "Bytes that are available on the share.", float64(u.available))
	}
	b.mu.Lock()
	for _, source := range b.shares.sources() {
		all = append(all, backend.Metric{Name: "trash_entries", Labels: map[string]string{"source": source.String()},
			Help:  "Deleted objects whose directories could not be removed from the trash.",
			Value: float64(b.stuck[source.String()])})
	}
	b.mu.Unlock()
	stats := b.jobs.Stats()
	return append(all,
		backend.Metric{Name: "copies", Help: "Snapshots, restored volumes and clones that are being made.",
			Value: float64(stats.Running)},
		backend.Metric{Name: "copy_errors_total", Help: "Copies that failed.", Counter: true,
			Value: float64(stats.Failed)},
		backend.Metric{Name: "copied_bytes_total", Help: "Bytes of all copies.", Counter: true,
			Value: float64(stats.Bytes)})
}
