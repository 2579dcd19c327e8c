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

// errPrecondition is the error for a valid call that the state of the volume does not allow.
var errPrecondition = errors.New("wrong state")

// errToken is the error for a paging token that this driver did not create.
var errToken = errors.New("bad token")

// statusCodes is the only table from errors to status codes. The first match counts. An error
// without a match is INTERNAL. CSI spec v1.13, error scheme.
var statusCodes = []struct {
	err  error
	code codes.Code
}{
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{backend.ErrNotReady, codes.FailedPrecondition}, // of Probe; takes precedence over the errors that it wraps
	{backend.ErrUnavailable, codes.Unavailable},
	// The machine is short of file descriptors or memory. These lines come before the classes: code
	// that wraps such an error in a class did not expect it.
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
	{backend.ErrUnauthenticated, codes.Unauthenticated},
	{backend.ErrDenied, codes.PermissionDenied},
	{backend.ErrInUse, codes.FailedPrecondition},
	{backend.ErrPrecondition, codes.FailedPrecondition},
	{errPrecondition, codes.FailedPrecondition},
	{mounter.ErrBusy, codes.FailedPrecondition},
	{mounter.ErrDevice, codes.FailedPrecondition},
	{mounter.ErrServer, codes.Unavailable},
	{mounter.ErrAccess, codes.PermissionDenied},
	{mounter.ErrNotFound, codes.NotFound},
	{mounter.ErrCredentials, codes.FailedPrecondition},
	{mounter.ErrStalled, codes.Unavailable},
	{mounter.ErrNoAnswer, codes.Unavailable},
	{mounter.ErrCheck, codes.Unavailable},
	{mounter.ErrNotEmpty, codes.FailedPrecondition},
	{mounter.ErrReadOnly, codes.FailedPrecondition},
	{backend.ErrExhausted, codes.ResourceExhausted},
	{backend.ErrOutOfRange, codes.OutOfRange},
	{errors.ErrUnsupported, codes.Unimplemented},
	// A full or read-only disk that an operator can repair, for example the disk of the state
	// directory. For a full root, the backend returns an error with a class.
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
