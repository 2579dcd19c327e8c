package hostpath

import (
	"context"
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/jobs"
)

// conflicts are the classes of conflicts of jobs.
var conflicts = map[jobs.Reason]error{jobs.Busy: backend.ErrBusy, jobs.Differs: backend.ErrExists, jobs.InUse: backend.ErrInUse}

// classified gives an error of package jobs its class.
func classified(err error) error {
	c := (*jobs.Conflict)(nil)
	switch {
	case errors.As(err, &c):
		return fmt.Errorf("%w: %w", conflicts[c.Reason], err)
	case errors.Is(err, jobs.ErrStopped):
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return err
}

// runOrJoin is jobs.RunOrJoin. Errors: ErrBusy, ErrExists, ErrUnavailable, those of run and of ctx.
func (b *Backend) runOrJoin(ctx context.Context, id, what string, sources []string, run func(ctx context.Context, job *jobs.Job) error) error {
	return classified(b.jobs.RunOrJoin(ctx, id, what, sources, run))
}

// exclusive is jobs.Exclusive. Errors: ErrInUse, ErrBusy.
func (b *Backend) exclusive(ids ...string) (release func(), err error) {
	release, err = b.jobs.Exclusive(ids...)
	return release, classified(err)
}
