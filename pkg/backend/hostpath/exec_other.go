//go:build !linux

package hostpath

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// HelperTasks is empty: this platform has no clone and no freeze that could hang.
func HelperTasks() []helper.Task { return nil }

// executor runs tasks in this process.
type executor struct {
	limit, quotaLimit time.Duration // unused: a task in this process cannot be given up
	giveWay           func()        // waits while calls run, for a while
}

func (e *executor) close() {}

func (e *executor) pools() []mounter.Helpers { return nil }

func (e *executor) open(context.Context, *os.File) error { return nil }

func (e *executor) quotaUsage(dir *os.File, mark quota.Mark) (quota.Usage, error) {
	return quota.Look(dir, mark)
}

func (e *executor) setLimit(dir *os.File, mark quota.Mark, size int64) error {
	return quota.Set(dir, mark, size)
}

func (e *executor) tree(ctx context.Context, src, dst *os.File, report func(copyReport)) (copier.How, error) {
	return e.copy(report, func(o copier.Options) (copier.How, error) { return copier.Tree(ctx, src, dst, o) })
}

func (e *executor) file(ctx context.Context, src, dst *os.File, report func(copyReport)) (copier.How, error) {
	return e.copy(report, func(o copier.Options) (copier.How, error) { return copier.File(ctx, src, dst, o) })
}

// copy runs a copy, and calls report regularly and at the end.
func (e *executor) copy(report func(copyReport), run func(copier.Options) (copier.How, error)) (copier.How, error) {
	p := &copier.Progress{}
	type result struct {
		how copier.How
		err error
	}
	ended := make(chan result, 1)
	go func() {
		how, err := guard.Value(func() (copier.How, error) {
			return run(copier.Options{Progress: p, Yield: e.yieldEvery()})
		})
		ended <- result{how, err}
	}()
	for {
		select {
		case r := <-ended:
			report(reportOf(p))
			return r.how, r.err
		case <-time.After(reportEvery):
			report(reportOf(p))
		}
	}
}

// yieldEvery returns a function for the goroutine of a copy, which gives way to calls after each
// time slice.
func (e *executor) yieldEvery() func() {
	last := time.Now()
	return func() {
		if time.Since(last) < slice {
			return
		}
		e.giveWay()
		last = time.Now()
	}
}

// cloner clones files.
type cloner struct{ pairs []*os.File }

func (e *executor) cloner(pairs ...*os.File) (*cloner, error) { return &cloner{pairs}, nil }

func (c *cloner) close() {}

func (c *cloner) within(ctx context.Context) error {
	for i := 0; i+1 < len(c.pairs); i += 2 {
		if err := copier.CloneWithin(ctx, c.pairs[i], c.pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *cloner) whole(context.Context) error {
	for i := 0; i+1 < len(c.pairs); i += 2 {
		if err := copier.Clone(c.pairs[i], c.pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (e *executor) subvolume(_ context.Context, src, parent *os.File, name string, readOnly bool) error {
	_, err := quota.Snapshot(src, parent, name, 0, readOnly)
	return err
}

func (e *executor) remove(ctx context.Context, trash *os.File, name string, taken func(uint32) bool,
	removed func(files int) error) error {
	dir, err := beneath.Open(trash.Name())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := store.DiscardData(dir, name, taken); err != nil {
		return err
	}
	return errors.Join(removeTree(trash, name, func() error { return removed(1) }), ctx.Err())
}
