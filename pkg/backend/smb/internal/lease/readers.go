package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// Random returns a random number for a name.
func Random() string {
	var n [8]byte
	rand.Read(n[:])
	return hex.EncodeToString(n[:])
}

// ReadersDir returns the name of the directory of the markers of copies of an object. It stays when
// the copies have ended, until the object is deleted.
func ReadersDir(name string) string { return name + "+" }

// WhileReading calls copyData while other processes know that this process copies the object from
// to the object to, whose right it has. The context of copyData ends with ctx, and when they may no
// longer know.
func (d *Dir) WhileReading(ctx context.Context, from, to string, copyData func(ctx context.Context) error) error {
	name := ReadersDir(from) + "/" + to
	for i := 0; ; i++ {
		c, err := d.TryClaim(ctx, name, "")
		switch {
		case err != nil:
			return err
		case c != nil:
			defer c.Release(ctx)
			return c.Explain(ctx, copyData(c.ctx))
		case i == 2: // of a process that has ended: this process has the exclusive right to make the object
			if err := d.remove(ctx, d.path(name)); err != nil {
				return err
			}
		case i > 10:
			return fmt.Errorf("%w: another process of the driver copies %s", backend.ErrBusy, from)
		}
	}
}

// Readers returns backend.ErrInUse while a process copies an object. The marker of a process that
// has ended does not count, and is removed. copied reports whether there is a directory of such
// markers. object is for errors.
func (d *Dir) Readers(ctx context.Context, name string, object fmt.Stringer) (copied bool, err error) {
	var copies []string
	err = d.Share.List(ctx, d.path(ReadersDir(name)), func(e client.Entry) error {
		if !strings.Contains(e.Name, "~") {
			copies = append(copies, e.Name)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return true, err
	}
	for _, to := range copies {
		reader := ReadersDir(name) + "/" + to
		err := d.dropEnded(ctx, reader)
		if errors.Is(err, errRunning) {
			return true, fmt.Errorf("%w: %s is being copied to %s", backend.ErrInUse, object, to)
		} else if err != nil {
			return true, err
		}
	}
	return true, nil
}

var errRunning = errors.New("the process of the marker has not ended")

// Drop removes the markers of an object if their process has ended.
func (d *Dir) Drop(ctx context.Context, name string) error {
	if err := d.dropEnded(ctx, name); !errors.Is(err, errRunning) {
		return err
	}
	return nil
}

// dropEnded is Drop with an error if the process has not ended: errRunning. Another process may
// succeed the markers meanwhile, so only a process that has succeeded them may remove them.
func (d *Dir) dropEnded(ctx context.Context, name string) error {
	chain, err := d.Chain(ctx, name)
	if err != nil || len(chain) == 0 {
		return err
	}
	c, err := d.succeed(ctx, name, "")
	if err == nil && c == nil {
		err = errRunning
	}
	if err != nil {
		return err
	}
	c.Release(ctx)
	return nil
}
