package client

import (
	"context"
	"fmt"
	"os"
	"time"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// files are files of a session that are open over several operations. They end with their session:
// the operations on them never move to another session. The end of the connection ends their
// requests. The library closes a file that could not be closed once more, in a finalizer, which
// must not send a request: it could wait for ever, or end the process.
type files struct {
	*Share
	ctx     context.Context // of the files
	end     func()          // called when the files have been closed
	session *session        // nil before the first open
	share   *smb2.Share     // the same for all files: else the library does not copy between them on the server
}

func (s *Share) files() *files {
	f := &files{Share: s}
	f.ctx, f.end = context.WithCancel(context.Background())
	return f
}

// named is an open file with its path, which errors show.
type named struct {
	*smb2.File
	path  string
	limit time.Duration // of the close
}

// open opens a file. op is for errors.
func (f *files) open(ctx context.Context, op, path string, flag int) (opened named, err error) {
	opened = named{path: path, limit: requestLimit}
	if flag&(os.O_WRONLY|os.O_RDWR) != 0 {
		opened.limit = flushLimit
	}
	open := func() (err error) {
		opened.File, err = f.share.OpenFile(path, flag, 0o666)
		return err
	}
	if f.session != nil {
		err = f.do(ctx, op, path, requestLimit, open)
		return opened, err
	}
	err = f.run(ctx, op, path, func(session *session, _ context.Context) error {
		f.session, f.share = session, session.share.WithContext(f.ctx)
		return open()
	})
	return opened, err
}

// do runs an operation on open files with a limit. op is for errors. Errors: those of Share, and
// backend.ErrUnavailable if the session of the files has ended.
func (f *files) do(ctx context.Context, op, path string, limit time.Duration, operation func() error) error {
	if err := f.begin(ctx, f.session, op, path); err != nil {
		return err
	}
	if !f.pool.usable(f.session) {
		return fmt.Errorf("%w: %s %q on %s: the session of the open file has ended", backend.ErrUnavailable, op, path,
			f.Source)
	}
	return f.request(ctx, f.session, op, path, limit, func(context.Context) error { return operation() })
}

// close closes a file, also after the end of ctx, the context of the call: it then waits for
// echoLimit. The server has closed the file with the session if that has ended.
func (f *files) close(ctx context.Context, opened named) error {
	if err := f.pool.hook(f.pool.Before, f.session, "close", opened.path); err != nil {
		return err
	}
	if !f.pool.usable(f.session) {
		return nil
	}
	closing, end := context.WithCancel(context.Background())
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(echoLimit, end) })()
	_, stop := f.pool.until(closing, f.session, opened.limit)
	defer stop()
	err := opened.File.Close()
	if err == nil {
		return f.pool.hook(f.pool.After, f.session, "close", opened.path)
	}
	f.pool.fail(f.session, err)
	return fmt.Errorf("close %q on %s: %w", opened.path, f.Source, convert(context.Background(), err))
}
