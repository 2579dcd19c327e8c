package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// Status codes of servers. Source: [MS-ERREF] 2.3.1.
const (
	statusSharingViolation = 0xC0000043
	statusLogonFailure     = 0xC000006D
	statusDirNotEmpty      = 0xC0000101
	statusBadNetworkName   = 0xC00000CC
	statusNotSupported     = 0xC00000BB
	statusDeletePending    = 0xC0000056
	statusNotADirectory    = 0xC0000103
	statusNoSuchFile       = 0xC000000F
	statusInvalidParameter = 0xC000000D
)

// ErrShared reports a file that another client has open in a way that prevents the operation.
var ErrShared = fmt.Errorf("%w: another client has the file open", backend.ErrUnavailable)

// ErrNotEmpty reports a directory that is not empty.
var ErrNotEmpty = fmt.Errorf("%w: directory not empty", backend.ErrUnavailable)

// errors by the status code of a server.
var statusErrors = map[uint32]error{
	statusLogonFailure: backend.ErrUnauthenticated,
	0xC000006E:         backend.ErrUnauthenticated, // ACCOUNT_RESTRICTION
	0xC000006F:         backend.ErrUnauthenticated, // INVALID_LOGON_HOURS
	0xC0000070:         backend.ErrUnauthenticated, // INVALID_WORKSTATION
	0xC0000071:         backend.ErrUnauthenticated, // PASSWORD_EXPIRED
	0xC0000072:         backend.ErrUnauthenticated, // ACCOUNT_DISABLED
	0xC0000064:         backend.ErrUnauthenticated, // NO_SUCH_USER
	0xC000006A:         backend.ErrUnauthenticated, // WRONG_PASSWORD
	0xC000015B:         backend.ErrUnauthenticated, // LOGON_TYPE_NOT_GRANTED
	0xC0000193:         backend.ErrUnauthenticated, // ACCOUNT_EXPIRED
	0xC0000224:         backend.ErrUnauthenticated, // PASSWORD_MUST_CHANGE
	0xC0000234:         backend.ErrUnauthenticated, // ACCOUNT_LOCKED_OUT

	0xC0000022: backend.ErrDenied, // ACCESS_DENIED
	0xC00000CA: backend.ErrDenied, // NETWORK_ACCESS_DENIED
	0xC00000A2: backend.ErrDenied, // MEDIA_WRITE_PROTECTED
	0xC0000061: backend.ErrDenied, // PRIVILEGE_NOT_HELD

	0xC000007F: backend.ErrExhausted, // DISK_FULL
	0xC0000044: backend.ErrExhausted, // QUOTA_EXCEEDED
	0xC0000802: backend.ErrExhausted, // DISK_QUOTA_EXCEEDED
	0xC0000904: backend.ErrExhausted, // FILE_SYSTEM_LIMITATION, of the size of a file

	0xC0000033: backend.ErrInvalid, // OBJECT_NAME_INVALID
	0xC000003B: backend.ErrInvalid, // OBJECT_PATH_SYNTAX_BAD
	0xC0000106: backend.ErrInvalid, // NAME_TOO_LONG

	statusBadNetworkName:   backend.ErrPrecondition, // no such share
	statusSharingViolation: ErrShared,
	statusDeletePending:    ErrShared, // a file that is gone when its last handle is closed
	statusDirNotEmpty:      ErrNotEmpty,
	statusNotADirectory:    fs.ErrNotExist, // an element of the path is a file
	statusNoSuchFile:       fs.ErrNotExist,
}

// sessionEnded are the status codes of a session or connection that has ended at the server.
// Another session can do the operation.
var sessionEnded = map[uint32]bool{
	0xC00000C9: true, // NETWORK_NAME_DELETED
	0xC0000203: true, // USER_SESSION_DELETED
	0xC000035C: true, // NETWORK_SESSION_EXPIRED
	0xC000020C: true, // CONNECTION_DISCONNECTED
	0xC000020D: true, // CONNECTION_RESET
	0xC0000128: true, // FILE_CLOSED
}

// convert returns err, an error of the library, with a class of package backend, or with
// fs.ErrNotExist, fs.ErrExist, ErrShared or ErrNotEmpty. caller is the context of the call, without
// the limit of a single request.
func convert(caller context.Context, err error) error {
	if err == nil {
		return nil
	}
	var response *smb2.ResponseError
	var network net.Error
	switch {
	case caller.Err() != nil:
		return caller.Err()
	case errors.As(err, &response):
		if class := statusErrors[response.Code]; class != nil {
			return fmt.Errorf("%w: %w", class, err)
		}
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), hasClass(err):
		return err
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", backend.ErrDenied, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return fmt.Errorf("%w: the server does not answer", backend.ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", backend.ErrUnavailable, err) // of the connection, or an answer that cannot be read
}

// hasClass reports whether err has a class of package backend.
func hasClass(err error) bool {
	for _, class := range []error{backend.ErrUnauthenticated, backend.ErrDenied, backend.ErrExhausted,
		backend.ErrInvalid, backend.ErrPrecondition, backend.ErrUnavailable, backend.ErrNotReady, ErrShared,
		ErrNotEmpty} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// breaks reports whether the session of a request that failed with err, an error of the library,
// cannot be used further. An answer of the server with a status leaves it usable. A context that
// ended in the middle of a write breaks it, and so does an error of the connection.
func breaks(err error) bool {
	var response *smb2.ResponseError
	switch {
	case err == nil:
		return false
	case errors.As(err, &response):
		return sessionEnded[response.Code]
	}
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrPermission) &&
		!errors.Is(err, backend.ErrInvalid) && !errors.Is(err, backend.ErrPrecondition)
}

// isStatus reports whether err is the answer of a server with this status.
func isStatus(err error, status uint32) bool {
	var response *smb2.ResponseError
	return errors.As(err, &response) && response.Code == status
}

// Retry repeats an operation on a file that another process has open for a moment.
func Retry(ctx context.Context, operation func() error) error {
	return retry(ctx, func(err error) bool { return errors.Is(err, ErrShared) }, operation)
}

// retry repeats an operation for some seconds while it fails with such an error.
func retry(ctx context.Context, again func(error) bool, operation func() error) error {
	for i := 0; ; i++ {
		err := operation()
		if i == 20 || !again(err) {
			return err
		}
		select {
		case <-time.After(time.Duration(i) * 10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
