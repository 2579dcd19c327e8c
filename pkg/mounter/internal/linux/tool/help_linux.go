package tool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/causeway-csi/causeway/internal/helper"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Help runs a task in a helper, for at most a limit. If the limit passes, the image on which it
// works counts as stalled until the helper has ended. If ctx ends, the image does not count as
// stalled: the task may only wait for the end of a freeze. Errors: those of the task and of ctx;
// ErrStalled if the limit has passed, or if there is no helper.
func (r *Runner) Help(ctx context.Context, limit time.Duration, task helper.Task, request any, on Disk,
	files ...*os.File) error {
	return r.supervise(ctx, limit, false, task, request, on, files...)
}

// HelpWriter is Help for a task that changes the image: the image also counts as stalled if ctx
// ends before the task.
func (r *Runner) HelpWriter(ctx context.Context, limit time.Duration, task helper.Task, request any, on Disk,
	files ...*os.File) error {
	return r.supervise(ctx, limit, true, task, request, on, files...)
}

func (r *Runner) supervise(ctx context.Context, limit time.Duration, writes bool, task helper.Task, request any,
	on Disk, files ...*os.File) error {
	s, err := r.Helpers.Start(task, request, files...)
	if err != nil {
		return fmt.Errorf("%w: %w", mounter.ErrStalled, err)
	}
	defer s.Close()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = s.Result(limited, nil, nil)
	if errors.Is(err, helper.ErrDied) {
		return fmt.Errorf("%w: %w", mounter.ErrStalled, err)
	}
	if limited.Err() == nil || err == nil || s.Ended() {
		return err
	}
	if ctx.Err() != nil && !writes {
		return ctx.Err()
	}
	done := r.Stalls.Add(on.Path, on.Image, on.Tenant, fmt.Sprintf("%s has not returned", task.Name))
	go func() {
		<-s.Gone()
		done()
	}()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &Stuck{fmt.Errorf("%w: %s of %s has not returned for %s", mounter.ErrStalled, task.Name, files[0].Name(),
		limit),
		s.Gone()}
}

// Stuck is the error of a task that was given up.
type Stuck struct {
	error
	Gone <-chan struct{} // closed when the helper has ended
}

func (s *Stuck) Unwrap() error {
	return s.error
}
