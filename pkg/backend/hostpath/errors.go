package hostpath

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/catalog"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
)

// found gives the error of a lookup its class.
func found(err error) error {
	if none := (*catalog.NotFound)(nil); errors.As(err, &none) {
		return fmt.Errorf("%w: %w", backend.ErrNotFound, err)
	}
	return err
}

// classed is an error that also has a class of package backend, without a change of its text.
type classed struct {
	error
	class error
}

func (c *classed) Unwrap() []error { return []error{c.error, c.class} }

// available gives store.ErrUnavailable its class.
func available(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return &classed{err, backend.ErrUnavailable}
	}
	return err
}

// exhausted converts the errors of a full or read-only disk to ErrExhausted: another node may have
// space.
func exhausted(err error) error {
	if store.IsTooLarge(err) {
		return fmt.Errorf("%w: %w", backend.ErrOutOfRange, err)
	}
	if store.IsFull(err) || store.IsReadOnly(err) {
		return fmt.Errorf("%w: %w", backend.ErrExhausted, err)
	}
	return err
}

// infeasible converts the errors of a disk that is full or that cannot hold a file of that size to
// ErrOutOfRange, which is final, so that the user can set a smaller size.
func infeasible(err error) error {
	if store.IsFull(err) || store.IsTooLarge(err) {
		return fmt.Errorf("%w: %w", backend.ErrOutOfRange, err)
	}
	return err
}

// obstructed is the text of health and errors for an element of the wrong type in the path of a
// volume's data.
const obstructed = "the path of the data is obstructed: %w: move the data back to this path, or restore it from a " +
	"backup"

// wrongType converts ErrType, of an element in the path of data, to ErrPrecondition.
func wrongType(err error) error {
	if errors.Is(err, beneath.ErrType) {
		return fmt.Errorf("%w: "+obstructed, backend.ErrPrecondition, err)
	}
	return err
}

// missing explains why the data of a record cannot be opened.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the data to copy is missing: %w", err)
	}
	return wrongType(err)
}
