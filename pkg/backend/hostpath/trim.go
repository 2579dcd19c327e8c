package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// firstTrim bounds the time from the start to the first trim. An update starts the drivers of all
// nodes at once, and drivers that are updated more often than they trim must trim nevertheless.
const firstTrim = time.Hour

// checkTrim returns ErrInvalid for an interval that this machine cannot have.
func checkTrim(cfg Config) error {
	switch {
	case cfg.TrimInterval < 0:
		return fmt.Errorf("%w: invalid --trim-interval=%s: must not be negative", backend.ErrInvalid, cfg.TrimInterval)
	case cfg.TrimInterval > 0 && !plain(cfg.Images):
		return fmt.Errorf("%w: --trim-interval is for Linux: on Windows an image keeps its space", backend.ErrInvalid)
	}
	return nil
}

// trimImages trims the mounted images once in each interval, until ctx is done.
func (b *Backend) trimImages(ctx context.Context, s *root) {
	pause := rand.N(min(b.cfg.TrimInterval, firstTrim))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		b.trimOnce(ctx, s)
		pause = b.cfg.TrimInterval
	}
}

// isLeft reports whether an error leaves an image until the next time, without a message: another
// call needs the image, a device of another image does not answer, or the volume was deleted.
func isLeft(err error) bool {
	return errors.Is(err, mounter.ErrBusy) || errors.Is(err, mounter.ErrNoAnswer) || errors.Is(err, fs.ErrNotExist)
}

// trimOnce trims each mounted image, one after the other. An image that another call needs is left
// until the next time.
func (b *Backend) trimOnce(ctx context.Context, s *root) {
	for _, v := range b.catalog.Volumes() {
		if v.Kind != image || v.Block {
			continue
		}
		b.traffic.giveWay()
		if ctx.Err() != nil {
			return
		}
		freed, err := b.cfg.Images.Trim(ctx, cmp.Or(s.namespaceOf(v), v.ID), s.dataPath(v))
		b.count.trimmed.Add(freed)
		if err == nil || ctx.Err() != nil || isLeft(err) {
			continue
		}
		b.count.trimErrors.Add(1)
		if b.cfg.Warn != nil {
			b.cfg.Warn(v.ID, "TrimFailed", fmt.Sprintf("the space of deleted files is not given back: %v", err))
		}
		if errors.Is(err, errors.ErrUnsupported) { // the same for all images of the root
			return
		}
	}
}
