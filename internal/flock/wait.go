package flock

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Wait opens the file or directory at path, makes a missing file, locks it, and returns a function
// that unlocks it. While another os.File holds the lock, Wait waits, and calls waiting once.
// Errors: that of the context; errors.ErrUnsupported, see Try.
func Wait(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	for said := false; ; said = true {
		got, err := Try(f)
		if got {
			return func() { f.Close() }, nil
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if !said {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for the lock %s: %w", path, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func open(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return os.Open(path)
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}
