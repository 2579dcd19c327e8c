package helper

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"
)

// failure is an error on its way from a helper to the driver.
type failure struct {
	Text  string          `json:"text"`
	Errno []syscall.Errno `json:"errno,omitempty"`
	Known []int           `json:"known,omitempty"` // indices into known and the task's Errors
}

// known are the errors that keep their identity for every task.
var known = []error{
	context.Canceled, context.DeadlineExceeded, errors.ErrUnsupported,
	fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid,
}

// encodeError returns the form of err that is sent to the driver. sentinels are the task's Errors.
func encodeError(err error, sentinels []error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	walk(err, func(e error) {
		if n, ok := e.(syscall.Errno); ok && //nolint:errorlint // walk unwraps
			!slices.Contains(f.Errno, n) {
			f.Errno = append(f.Errno, n)
		}
	})
	for i, sentinel := range slices.Concat(known, sentinels) {
		if errors.Is(err, sentinel) {
			f.Known = append(f.Known, i)
		}
	}
	return f
}

// walk calls visit with err and each error that it wraps.
func walk(err error, visit func(error)) {
	visit(err)
	switch e := err.(type) { //nolint:errorlint // it unwraps
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			walk(inner, visit)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			walk(inner, visit)
		}
	}
}

// remoteError is an error that a helper returned. errors.Is finds the same errors in it as in the
// helper.
type remoteError struct {
	text  string
	wraps []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.wraps }

func (f *failure) decode(sentinels []error) error {
	e := &remoteError{text: f.Text}
	for _, n := range f.Errno {
		e.wraps = append(e.wraps, n)
	}
	all := slices.Concat(known, sentinels)
	for _, i := range f.Known {
		if i >= 0 && i < len(all) {
			e.wraps = append(e.wraps, all[i])
		}
	}
	return e
}
