// Package joberrors gives errors of package jobs the classes of package backend.
package joberrors

import (
	"errors"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
)

// classes are the classes of conflicts of jobs.
var classes = map[jobs.Reason]error{jobs.Busy: backend.ErrBusy, jobs.Differs: backend.ErrExists,
	jobs.InUse: backend.ErrInUse}

// Classify gives an error of package jobs its class. Classify returns another error unchanged.
func Classify(err error) error {
	c := (*jobs.Conflict)(nil)
	switch {
	case errors.As(err, &c):
		return fmt.Errorf("%w: %w", classes[c.Reason], err)
	case errors.Is(err, jobs.ErrStopped):
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return err
}
