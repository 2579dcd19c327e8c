package components

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/internal/flock"
)

// lock takes the lock that the file at path is, and returns what gives it back. If somebody else has it, it calls waiting
// once and waits.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for said := false; ; said = true {
		got, err := flock.Try(f)
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
			return nil, fmt.Errorf("wait for the lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
