package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// consistencyKey is the parameter that says what a copy of an image has to be that is mounted meanwhile.
const consistencyKey = "consistency"

// consistency is its value.
type consistency string

const (
	// frozen: the filesystem is frozen for the moment of the copy, which is clean then. Where that can't be, or takes too
	// long, the copy is what a power cut would leave. Where the disk can't copy in a moment, there is an error.
	frozen consistency = "frozen"
	// none: where the disk can't copy in a moment, the copy is made while the image is written to, and may be torn.
	none consistency = "none"
)

func parseConsistency(parameters map[string]string) (consistency, error) {
	switch c := consistency(parameters[consistencyKey]); c {
	case "":
		return frozen, nil
	case frozen, none:
		return c, nil
	default:
		return "", fmt.Errorf("%w: parameter consistency is %.64q, and there are %s and %s", backend.ErrInvalid, c, frozen, none)
	}
}

// freezeLimit is how long a filesystem may be frozen: who writes to it waits meanwhile.
const freezeLimit = 5 * time.Second

// copying is the making of one copy.
type copying struct {
	*Backend
	store  *store
	from   string // directory of what is copied, below the root
	live   string // ID of the volume, if it is one: it may be written to meanwhile. "" for a snapshot
	accept consistency
	raw    bool // an image without a filesystem: nothing can hold writes to it up
	me     *work
}

// copied is what came of it.
type copied struct {
	how  copier.How
	size int64 // bytes of an image
	held int64 // bytes of the disk, as if none of them were shared
}

// run copies the data of c.from, which is made of what content says, to the directory half, durably but for its entry
// there.
func (c copying) run(ctx context.Context, what content, half *os.Root) (copied, error) {
	if what.Kind == image {
		c.raw = what.FSType == ""
		return c.image(ctx, half)
	}
	return c.tree(ctx, what, half)
}

// tree copies a directory, for a snapshot: a subvolume at one moment, others file by file.
func (c copying) tree(ctx context.Context, what content, half *os.Root) (got copied, err error) {
	if c.store.subvolumes() {
		c.me.cut = time.Now()
		err = c.store.subvolumeOf(c.from, half, true)
		if err == nil {
			got.held, err = c.store.heldBy(ctx, half, what)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return got, err
		}
	}
	if err := half.Mkdir(dataDir, 0o700); err != nil {
		return got, err
	}
	dst, err := half.Open(dataDir)
	if err != nil {
		return got, err
	}
	defer dst.Close()
	return c.treeTo(ctx, dst)
}

// image copies an image in a moment where the disk can.
func (c copying) image(ctx context.Context, half *os.Root) (got copied, err error) {
	src, err := c.store.root.Open(path.Join(c.from, imageFile))
	if err != nil {
		return got, missing(err)
	}
	defer src.Close()
	dst, err := half.OpenFile(imageFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	got.how, err = c.content(ctx, src, dst)
	if err != nil {
		return got, err
	}
	crashpoint.Reached("copy:image")
	if err := dst.Sync(); err != nil {
		return got, err
	}
	if got.held, err = copier.Held(dst); err != nil {
		return got, err
	}
	info, err := dst.Stat()
	if err == nil {
		got.size = info.Size()
	}
	return got, err
}

func (c copying) content(ctx context.Context, src, dst *os.File) (copier.How, error) {
	if c.live == "" {
		return c.slowly(ctx, src, dst)
	}
	if c.store.reflinks() {
		switch err := c.cut(ctx, src, dst); {
		case err == nil:
			return copier.Cloned, nil
		case !errors.Is(err, errors.ErrUnsupported):
			return copier.Copied, err
		}
	}
	if c.accept == none {
		return c.slowly(ctx, src, dst)
	}
	return c.unmounted(ctx, src, dst)
}

// slowly copies an image, if need be by reading it.
func (c copying) slowly(ctx context.Context, src, dst *os.File) (copier.How, error) {
	if !c.store.reflinks() {
		leave, err := c.works.queue(ctx)
		if err != nil {
			return copier.Copied, err
		}
		defer leave()
	}
	c.me.cut = time.Now()
	return copier.File(ctx, src, dst, copier.Options{Progress: &c.me.progress})
}

// cut makes dst share all blocks of src, at one moment, under a freeze if that can be. Errors: errors.ErrUnsupported.
func (c copying) cut(ctx context.Context, src, dst *os.File) error {
	err := c.cfg.Freeze(ctx, []string{c.path()}, freezeLimit, func(limit context.Context) error {
		c.me.cut = time.Now()
		if c.raw { // it is written to: only one clone of the whole is of one moment
			return copier.Clone(src, dst)
		}
		return copier.CloneWithin(limit, src, dst)
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, mounter.ErrFrozen): // somebody has to hear of it
		return err
	case errors.Is(err, mounter.ErrThawed), errors.Is(err, mounter.ErrBusy), errors.Is(err, context.DeadlineExceeded):
	default:
		return err
	}
	// It couldn't be frozen, or not for as long as it took. One clone of the whole is still of one moment, and what is
	// in it is what a power cut then would have left.
	if err := dst.Truncate(0); err != nil {
		return err
	}
	c.count.unfrozen.Add(1)
	c.me.cut = time.Now()
	return copier.Clone(src, dst)
}

// unmounted copies an image that nobody writes to, and makes sure that nobody did.
func (c copying) unmounted(ctx context.Context, src, dst *os.File) (copier.How, error) {
	defer c.works.hold(c.live)()
	before, err := c.quiet(src)
	if err != nil {
		return copier.Copied, err
	}
	how, err := c.slowly(ctx, src, dst)
	if err != nil {
		return how, err
	}
	after, err := c.quiet(src)
	if err == nil && !after.ModTime().Equal(before.ModTime()) {
		err = fmt.Errorf("%w: volume %s was written to while it was copied: once more", backend.ErrBusy, c.live)
	}
	return how, err
}

// quiet returns what the image looks like, or ErrPrecondition if it is mounted.
func (c copying) quiet(src *os.File) (fs.FileInfo, error) {
	users, err := c.cfg.Users(c.path())
	if err != nil {
		return nil, err
	}
	if len(users) > 0 {
		return nil, fmt.Errorf("%w: volume %s is mounted at %s, and the filesystem of the root can't copy it in a moment: unmount it, or take a class with consistency: none, for a copy that may be torn",
			backend.ErrPrecondition, c.live, users[0])
	}
	return src.Stat()
}

// path is the absolute path of the image.
func (c copying) path() string { return filepath.Join(c.store.path, c.from, imageFile) }

// missing says that data is gone which a record says is there.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the data to copy is missing: %w", err)
	}
	return err
}

// canReflink finds out whether files below the root can share blocks.
func (s *store) canReflink() (bool, error) {
	var files [2]*os.File
	for i := range files {
		name := path.Join(stagingDir, "probe-"+random())
		f, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return false, err
		}
		defer f.Close()
		defer s.root.Remove(name)
		files[i] = f
	}
	if _, err := files[0].Write(make([]byte, 4096)); err != nil {
		return false, err
	}
	switch err := copier.Clone(files[0], files[1]); {
	case errors.Is(err, errors.ErrUnsupported):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}
