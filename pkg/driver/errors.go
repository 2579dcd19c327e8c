package driver

import (
	"context"
	"errors"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// errPrecondition says that a call is right, but not in the state in which the volume is.
var errPrecondition = errors.New("wrong state")

// errToken says that a paging token isn't one of ours.
var errToken = errors.New("bad token")

// statusCodes is the one place where an error becomes a status code. The first line that matches counts; what matches
// none is INTERNAL. CSI spec v1.13, error scheme.
var statusCodes = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{backend.ErrNotReady, codes.FailedPrecondition}, // Probe's, whatever else it wraps
	{backend.ErrUnavailable, codes.Unavailable},
	// The machine is short of files or memory. No class says that, and a class that wraps it is the guess of a caller
	// that did not expect it.
	{syscall.EMFILE, codes.Unavailable},
	{syscall.ENFILE, codes.Unavailable},
	{syscall.ENOMEM, codes.Unavailable},
	{backend.ErrBusy, codes.Aborted},
	{errToken, codes.Aborted},
	{errStalled, codes.DeadlineExceeded},
	{backend.ErrNotFound, codes.NotFound},
	{backend.ErrExists, codes.AlreadyExists},
	{mounter.ErrConflict, codes.AlreadyExists},
	{backend.ErrInvalid, codes.InvalidArgument},
	{mounter.ErrPath, codes.InvalidArgument},
	{mounter.ErrOption, codes.InvalidArgument},
	{backend.ErrInUse, codes.FailedPrecondition},
	{backend.ErrPrecondition, codes.FailedPrecondition},
	{errPrecondition, codes.FailedPrecondition},
	{mounter.ErrBusy, codes.FailedPrecondition},
	{mounter.ErrDevice, codes.FailedPrecondition},
	{mounter.ErrStalled, codes.Unavailable},
	{mounter.ErrNoAnswer, codes.Unavailable},
	{mounter.ErrNotEmpty, codes.FailedPrecondition},
	{mounter.ErrReadOnly, codes.FailedPrecondition},
	{backend.ErrExhausted, codes.ResourceExhausted},
	{backend.ErrOutOfRange, codes.OutOfRange},
	{errors.ErrUnsupported, codes.Unimplemented},
	// A disk that an operator can mend, such as that of the state directory. What a full root means to a call, its
	// backend says with a class.
	{syscall.ENOSPC, codes.Unavailable},
	{syscall.EDQUOT, codes.Unavailable},
	{syscall.EROFS, codes.Unavailable},
}

// codeOf returns the status code for err.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	for _, line := range statusCodes {
		if errors.Is(err, line.err) {
			return line.code
		}
	}
	return codes.Internal
}
