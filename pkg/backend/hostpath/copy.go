package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/backend/internal/jobs"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// freezeLimit is the maximum time for which a filesystem is frozen: its writers wait meanwhile.
const freezeLimit = 5 * time.Second

// detachedLimit is the maximum time for which an image that is not attached cannot be attached: its
// copy makes progress meanwhile, or is given up earlier (see watched).
const detachedLimit = 24 * time.Hour

// copying is a copy in progress.
type copying struct {
	*Backend
	store  *root
	from   string // directory of the source, below the root
	live   string // ID of the source volume, which pods may write to meanwhile; "" if the source is a snapshot
	accept consistency
	raw    bool // an image without a filesystem, which cannot be frozen
	claim  fair.Request
	job    *copyJob
}

// copyJob is the job of one copy.
type copyJob struct {
	*jobs.Job
	pointInTime time.Time // point in time of the data; the start of a copy that has none
}

// report notes the state of the copy.
func (j *copyJob) report(r copyReport) {
	p := jobs.Progress{Bytes: r.Bytes, OnDisk: r.OnDisk}
	if r.Idle >= stallAfter {
		p.Stall = fmt.Sprintf(", no progress at %q since %s", r.Entry,
			time.Now().Add(-r.Idle).UTC().Format(time.RFC3339))
	}
	j.Report(p)
}

// copied is the result of a copy.
type copied struct {
	how  copier.How
	size int64 // bytes of an image
	held int64 // bytes of the disk, shared blocks included
}

// run copies the data of c.from, which source describes, to an incomplete directory. The copy is
// durable, except for its entry in that directory.
func (c copying) run(ctx context.Context, source content, incomplete *beneath.Dir) (copied, error) {
	if source.Kind == image {
		c.raw = source.FSType == ""
		return c.image(ctx, incomplete)
	}
	return c.tree(ctx, source, incomplete)
}

// tree copies a directory for a snapshot: a subvolume at a point in time, any other directory file
// by file.
func (c copying) tree(ctx context.Context, source content, incomplete *beneath.Dir) (got copied, err error) {
	if c.store.subvolumes() {
		err = c.subvolumeOf(ctx, incomplete, true)
		if err == nil {
			got.held, err = c.store.heldBy(ctx, incomplete, source)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return got, err
		}
	}
	if err := incomplete.Mkdir(dataDir, 0o700); err != nil {
		return got, err
	}
	dst, err := incomplete.OpenDirFile(dataDir)
	if err != nil {
		return got, err
	}
	defer dst.Close()
	return c.treeTo(ctx, dst)
}

// image copies an image: a plain image at a point in time if the disk supports that, all others
// while they are not attached. Errors: ErrPrecondition if that is impossible now.
func (c copying) image(ctx context.Context, incomplete *beneath.Dir) (got copied, err error) {
	if c.live == "" || plain(c.store.images) {
		return c.imageFile(ctx, incomplete)
	}
	defer c.jobs.BlockWrites(c.live)()
	err = c.store.images.Freeze(ctx, tenantOf(c.claim), []string{c.path()}, detachedLimit,
		func(ctx context.Context) (err error) { got, err = c.imageFile(ctx, incomplete); return err })
	if errors.Is(err, mounter.ErrBusy) {
		err = fmt.Errorf("%w: volume %s is attached, and this operating system copies an image only while it is not: "+
			"unmount the volume: %w", backend.ErrPrecondition, c.live, err)
	}
	return got, err
}

// imageFile copies the file of an image.
func (c copying) imageFile(ctx context.Context, incomplete *beneath.Dir) (got copied, err error) {
	if err := c.copyImage(ctx, incomplete, &got); err != nil {
		return got, err
	}
	got.size, err = c.store.images.ImageSize(c.store.incompleteImage(incomplete))
	return got, err
}

// copyImage copies the bytes of an image, and leaves no file open: Windows measures no open image.
func (c copying) copyImage(ctx context.Context, incomplete *beneath.Dir, got *copied) (err error) {
	src, err := c.store.Dir().OpenFile(path.Join(c.from, c.store.Image()), os.O_RDONLY, 0)
	if err != nil {
		return missing(err)
	}
	defer src.Close()
	dst, err := incomplete.OpenFile(c.store.Image(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	got.how, err = c.imageData(ctx, src, dst)
	if err != nil {
		return err
	}
	crashpoint.Reached("copy:image")
	if err := dst.Sync(); err != nil {
		return err
	}
	got.held, err = copier.OnDisk(dst)
	return err
}

func (c copying) imageData(ctx context.Context, src, dst *os.File) (copier.How, error) {
	if c.live == "" || !plain(c.store.images) {
		return c.copyFile(ctx, src, dst)
	}
	if c.store.reflinks() {
		switch err := c.clonePointInTime(ctx, src, dst); {
		case err == nil:
			return copier.Cloned, nil
		case !errors.Is(err, errors.ErrUnsupported):
			return copier.Copied, err
		}
	}
	if c.accept == anyState {
		return c.copyFile(ctx, src, dst)
	}
	return c.copyUnmounted(ctx, src, dst)
}

// copyFile copies an image that does not change, or of which any state is accepted: by reflink if
// the filesystem supports reflinks, otherwise by reading and writing the data, which takes a slot.
func (c copying) copyFile(ctx context.Context, src, dst *os.File) (copier.How, error) {
	defer c.traffic.pause()()
	leave := func() {}
	if !c.store.reflinks() {
		var err error
		if leave, err = c.slots.copies.Acquire(ctx, c.claim); err != nil {
			return copier.Copied, err
		}
		defer leave()
	}
	return c.watched(leave, func(report func(copyReport)) (copier.How, error) {
		return c.exec.file(ctx, src, dst, report)
	})
}

// watched runs a copy and reports when it hangs. A copy that hangs gives its slot back.
func (c copying) watched(leave func(), run func(report func(copyReport)) (copier.How, error)) (copier.How, error) {
	if err := c.troubles.check(c.claim); err != nil {
		return copier.Copied, err
	}
	c.job.pointInTime = time.Now()
	w := watch{troubles: &c.troubles, claim: c.claim, leave: leave, after: min(stallAfter, c.exec.limit)}
	how, err := run(func(r copyReport) {
		c.job.report(r)
		w.report(r)
	})
	var gone <-chan struct{}
	if g := (*givenUp)(nil); errors.As(err, &g) {
		gone = g.gone
	}
	w.end(gone)
	return how, c.explain(err)
}

// clonePointInTime makes dst share all blocks of src at a point in time, under a freeze if
// possible. Errors: errors.ErrUnsupported, backend.ErrPrecondition, mounter.ErrThawed, and those of
// ctx.
func (c copying) clonePointInTime(ctx context.Context, src, dst *os.File) error {
	defer c.traffic.pause()()
	leave, err := c.slots.pointInTime.Acquire(ctx, c.claim)
	if err != nil {
		return err
	}
	defer leave()
	if err := c.troubles.check(c.claim); err != nil {
		return err
	}
	clone, err := c.exec.cloner(src, dst) // started before the freeze
	if err != nil {
		return err
	}
	defer func() { clone.close() }()
	cloneStarted := false
	err = c.cfg.Images.Freeze(ctx, tenantOf(c.claim), []string{c.path()}, freezeLimit,
		func(limit context.Context) error {
			c.job.pointInTime, cloneStarted = time.Now(), true
			if c.raw { // writes to a block device continue: only a single clone of the whole file is of a point in time
				return clone.whole(ctx)
			}
			return clone.within(limit)
		})
	unfrozen, why := canDoWithout(ctx, err)
	if !unfrozen {
		return c.explain(why)
	}
	c.troubles.warned(c.claim, "CopyUnfrozen", fmt.Sprintf("the copy is made without a freeze: %v", why))
	// The filesystem could not be frozen, or not for as long as the clone took. A single clone of
	// the whole file is still of a point in time: it has the state of a power cut.
	if cloneStarted {
		clone.close()
		if err := dst.Truncate(0); err != nil {
			return err
		}
		if clone, err = c.exec.cloner(src, dst); err != nil {
			return err
		}
	}
	c.count.unfrozen.Add(1)
	c.job.pointInTime = time.Now()
	return c.explain(clone.whole(ctx))
}

// canDoWithout reports whether err, of a copy under a freeze, permits a copy without a freeze. It
// also returns the error for the caller, or the reason for which there is no freeze.
func canDoWithout(ctx context.Context, err error) (bool, error) {
	g := (*givenUp)(nil)
	switch {
	case err == nil:
		return false, nil
	case ctx.Err() != nil:
		return false, errors.Join(ctx.Err(), err)
	case errors.As(err, &g), errors.Is(err, mounter.ErrFrozen): // an operator must act
		return false, err
	}
	return errors.Is(err, mounter.ErrThawed) || errors.Is(err, mounter.ErrStalled) ||
		errors.Is(err, mounter.ErrNoAnswer) ||
		errors.Is(err, mounter.ErrBusy) || errors.Is(err, context.DeadlineExceeded), err
}

// explain converts errors of a tenant's data to ErrPrecondition, and records them for the health of
// the source.
func (c copying) explain(err error) error {
	g := (*givenUp)(nil)
	switch {
	case err == nil:
		c.troubles.well(c.claim)
		return nil
	case errors.Is(err, errNoProgress) && errors.As(err, &g):
		return c.stalled(c.claim, err)
	case errors.Is(err, copier.ErrShared): // until the process closes the file
		return fmt.Errorf("%w: %w", backend.ErrBusy, err)
	case errors.Is(err, copier.ErrLease), errors.Is(err, copier.ErrDepth), errors.Is(err, copier.ErrMoved):
		c.troubles.failed(c.claim, err.Error())
	default:
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrPrecondition, err)
}

// copyUnmounted copies an image without writers, and verifies that there were none.
func (c copying) copyUnmounted(ctx context.Context, src, dst *os.File) (copier.How, error) {
	defer c.jobs.BlockWrites(c.live)()
	before, err := c.quiet(ctx, src)
	if err != nil {
		return copier.Copied, err
	}
	how, err := c.copyFile(ctx, src, dst)
	if err != nil {
		return how, err
	}
	after, err := c.quiet(ctx, src)
	if err == nil && !after.ModTime().Equal(before.ModTime()) {
		err = fmt.Errorf("%w: volume %s was written to during the copy: the copy starts again", backend.ErrBusy, c.live)
	}
	return how, err
}

// quiet describes the image file, or returns ErrPrecondition if the image is in use.
func (c copying) quiet(ctx context.Context, src *os.File) (fs.FileInfo, error) {
	users, err := c.cfg.Images.MountPointsOf(c.path())
	if err == nil {
		users, err = c.detached(ctx, c.path(), users)
	}
	if err != nil {
		return nil, err
	}
	if len(users) > 0 {
		return nil, fmt.Errorf("%w: volume %s is %s, and the filesystem of the root cannot copy it at a point in "+
			"time: unmount the volume, or use a class with consistency: none, for a copy that may be torn",
			backend.ErrPrecondition, c.live, usedAt(users))
	}
	return src.Stat()
}

// path is the absolute path of the image.
func (c copying) path() string { return c.store.Real(c.from, c.store.Image()) }

// subvolumeOf makes a snapshot of the source's data in an incomplete directory. Errors:
// errors.ErrUnsupported if the data is not a subvolume.
func (c copying) subvolumeOf(ctx context.Context, incomplete *beneath.Dir, readOnly bool) error {
	defer c.traffic.pause()()
	leave, err := c.slots.pointInTime.Acquire(ctx, c.claim)
	if err != nil {
		return err
	}
	defer leave()
	if err := c.troubles.check(c.claim); err != nil {
		return err
	}
	c.job.pointInTime = time.Now()
	src, err := c.source()
	if err != nil {
		return err
	}
	defer src.Close()
	parent, err := incomplete.OpenDirFile(".")
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := c.explain(c.exec.subvolume(ctx, src, parent, dataDir, readOnly)); err != nil {
		return err
	}
	crashpoint.Reached("copy:subvolume")
	return nil
}

// source opens the directory to be copied, as a path only: a helper opens it for reading. Errors:
// ErrPrecondition if that hangs.
func (c copying) source() (*os.File, error) {
	src, err := c.store.Dir().OpenDirPath(path.Join(c.from, dataDir))
	if err != nil {
		return nil, missing(err)
	}
	if c.store.subvolumes() { // on btrfs an open waits for a lock that a tenant can hold
		err = c.stalled(c.claim, c.exec.open(context.Background(), src))
	}
	if err != nil {
		src.Close()
		return nil, err
	}
	return src, nil
}

// heldBy returns the bytes on disk of a subvolume in an incomplete directory, shared blocks
// included. If the filesystem does not count them, or has simple quotas, which leave out shared
// blocks, heldBy returns the size of the source.
func (s *root) heldBy(ctx context.Context, incomplete *beneath.Dir, source content) (int64, error) {
	if m, why := s.mechanism(ctx); why != nil || m.Simple {
		return source.Size, nil
	}
	data, err := incomplete.OpenDirFile(dataDir)
	if err != nil {
		return 0, err
	}
	defer data.Close()
	u, err := quota.Look(data, quota.Mark{Kind: quota.Subvolume})
	if errors.Is(err, quota.ErrNotEnforced) {
		return source.Size, nil
	}
	return u.Used, err
}

// treeTo copies the directory to dst file by file, and so without a point in time.
func (c copying) treeTo(ctx context.Context, dst *os.File) (got copied, err error) {
	defer c.traffic.pause()()
	leave, err := c.slots.copies.Acquire(ctx, c.claim)
	if err != nil {
		return got, err
	}
	defer leave()
	src, err := c.source()
	if err != nil {
		return got, err
	}
	defer src.Close()
	got.how, err = c.watched(leave, func(report func(copyReport)) (copier.How, error) {
		return c.exec.tree(ctx, src, dst, report)
	})
	got.held = c.job.Progress().OnDisk
	crashpoint.Reached("copy:tree")
	return got, err
}

// setResult records the result of the copy.
func (n *snapshot) setResult(got copied) {
	n.OnDisk, n.Cloned = got.held, n.Kind == image && got.how == copier.Cloned
	n.Size = max(n.Size, got.size)
}
