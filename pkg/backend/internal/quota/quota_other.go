//go:build !linux

package quota

import (
	"context"
	"errors"
	"os"
)

// Find returns errors.ErrUnsupported: Windows and macOS have no quotas of directories that apply to
// all users.
func Find(context.Context, *os.File) (Mechanism, error) { return Mechanism{}, errors.ErrUnsupported }

// Make returns errors.ErrUnsupported: see Find.
func Make(Mechanism, *os.File, string, Options) (Mark, error) { return Mark{}, errors.ErrUnsupported }

// Snapshot returns errors.ErrUnsupported: see Find.
func Snapshot(_, _ *os.File, _ string, _ int64, _ bool) (Mark, error) {
	return Mark{}, errors.ErrUnsupported
}

// Set returns errors.ErrUnsupported: see Find.
func Set(*os.File, Mark, int64) error { return errors.ErrUnsupported }

// Look returns errors.ErrUnsupported: see Find.
func Look(*os.File, Mark) (Usage, error) { return Usage{}, errors.ErrUnsupported }

// Discard does nothing: no directory has a limit.
func Discard(*os.File, string, func(project uint32) bool) error { return nil }

// Sweep does nothing: see Discard.
func Sweep(*os.File) error { return nil }
