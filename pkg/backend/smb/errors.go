package smb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
)

// ignore returns err unless it is target.
func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// isFinal reports whether the caller does not repeat a call that fails with err: the call must
// leave nothing behind.
func isFinal(err error) bool {
	return !errors.Is(err, backend.ErrBusy) && !errors.Is(err, backend.ErrUnavailable) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// errUnprepared reports a source without the directories of its store. Every volume and snapshot of
// the source was made after them, so they are lost, or the server has not mounted a filesystem.
var errUnprepared = fmt.Errorf("%w: the source has no directory %s/%s: mount its filesystem on the server, or make "+
	"the directory if all volumes of the source are gone", backend.ErrPrecondition, records.MetaDir, records.WorkDir)

// classified gives an error of package client without a class the class of an error that the caller
// repeats: the step that failed depends on a state that another process, or a person, has changed.
func classified(err error) error {
	for _, e := range []error{fs.ErrExist, fs.ErrNotExist} {
		if errors.Is(err, e) && !hasClass(err) {
			return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
	}
	return err
}

var errFound = errors.New("found")

func hasClass(err error) bool {
	for _, class := range []error{backend.ErrUnavailable, backend.ErrPrecondition, backend.ErrBusy, backend.ErrInUse,
		backend.ErrExists, backend.ErrNotFound, backend.ErrNotReady, backend.ErrInvalid, context.Canceled,
		context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// repeated makes errors of a share, which the resizer takes for final, or for those of a volume in
// use, ones that it repeats.
func repeated(err error) error {
	for _, class := range []error{backend.ErrExhausted, backend.ErrPrecondition, backend.ErrNotReady} {
		if errors.Is(err, class) {
			return fmt.Errorf("%w: %s", backend.ErrUnavailable, err.Error())
		}
	}
	return err
}
