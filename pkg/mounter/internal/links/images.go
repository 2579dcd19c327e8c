package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Host is the Host of a system on which a mount is a link.
type Host struct{ *links }

// errNoImages is the error of calls about images.
var errNoImages = fmt.Errorf("%w: disk images on Windows: use volumes of the kind directory", errors.ErrUnsupported)

// errNoRestore is the error of the restoring of images.
var errNoRestore = fmt.Errorf("%w: volumes from snapshots or clones of disk images on Windows: a copy has the "+
	"identifiers of its source, and it is not known whether Windows attaches both: use volumes of the kind directory",
	errors.ErrUnsupported)

// hasDisks reports whether this system has disks for volumes.
func (h Host) hasDisks() bool { return h.links != nil && h.disks != nil }

// Supports is that of Images.
func (h Host) Supports(k mounter.Kind, fsType string, options []string) error {
	if err := mounter.Windows.Supports(k, fsType, options); err != nil {
		return err
	}
	if k == mounter.Image && h.links != nil && h.disks == nil {
		return errNoImages
	}
	return nil
}

// NewUUID returns errors.ErrUnsupported: images are not restored here.
func (Host) NewUUID(context.Context, *os.File, string, int) error { return errNoRestore }

// Trim returns errors.ErrUnsupported: an image has all of its space from the start.
func (Host) Trim(context.Context, string, string) (int64, error) {
	return 0, fmt.Errorf("%w: trimming of images on Windows, where an image keeps its space", errors.ErrUnsupported)
}

// Freeze calls copyData while the images are not attached. Calls that attach one of them, or change
// its size, wait. No filesystem can be frozen here, so the error for an image that is attached is
// ErrBusy.
func (h Host) Freeze(ctx context.Context, _ string, images []string, limit time.Duration,
	copyData func(ctx context.Context) error) error {
	if len(images) > 0 {
		release, err := h.keepDetached(ctx, images)
		if err != nil {
			return err
		}
		defer release()
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := copyData(limited)
	if len(images) > 0 && ctx.Err() == nil && limited.Err() != nil {
		return errors.Join(err, fmt.Errorf("%w: the copy lasted longer than %s", mounter.ErrThawed, limit))
	}
	return err
}

// keepDetached locks images that are not attached. Errors: ErrBusy for an image that is attached.
func (h Host) keepDetached(ctx context.Context, images []string) (release func(), err error) {
	if !h.hasDisks() {
		return nil, errNoImages
	}
	byKey := map[string]string{}
	for _, image := range images {
		path, err := h.imagePath(image)
		if err != nil {
			return nil, err
		}
		byKey[h.Key(path)] = path
	}
	keys := slices.Sorted(maps.Keys(byKey))
	if release, err = h.disks.images.Lock(ctx, keys...); err != nil {
		return nil, err
	}
	for _, key := range keys {
		info, err := h.disks.vhdx(byKey[key])
		if err == nil && info.Attached {
			err = fmt.Errorf("%w: %s is attached, and no filesystem can be frozen on Windows: stop the pods that use "+
				"the volume", mounter.ErrBusy, byKey[key])
		}
		if err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// Tune does nothing: images always use the page cache of their file.
func (Host) Tune(context.Context, mounter.Mount) error { return nil }

// Detach does nothing: a virtual disk is detached when its last link is removed.
func (Host) Detach(context.Context, string) (string, error) { return "", nil }

// failingTime is how long Failing waits for a volume.
const failingTime = 5 * time.Second

// Failing asks the volumes of images for their dirty bit and their read-only flag.
func (h Host) Failing() (map[string]mounter.Failure, error) {
	if !h.hasDisks() {
		return nil, nil
	}
	failing, asked := map[string]mounter.Failure{}, map[string]bool{}
	var errs []error
	for _, r := range h.records.all() {
		if r.Image == "" || asked[h.Key(r.Image)] {
			continue
		}
		asked[h.Key(r.Image)] = true
		switch f, err := h.failureAt(r.Source); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", r.Image, err))
		case f != nil:
			failing[r.Image] = *f
		}
	}
	return failing, errors.Join(errs...)
}

// failureAt returns the failure of the volume at a folder. A volume that is gone, as after a
// reboot, has none.
func (h Host) failureAt(folder string) (*mounter.Failure, error) {
	type answer struct {
		f   *mounter.Failure
		err error
	}
	result := make(chan answer, 1)
	go func() {
		volume, present, err := h.disks.volumeAt(folder)
		a := answer{err: err}
		if err == nil && present {
			a.f, a.err = h.disks.failure(volume)
		}
		if errors.Is(a.err, fs.ErrNotExist) {
			a.err = nil
		}
		result <- a
	}()
	select {
	case a := <-result:
		return a.f, a.err
	case <-time.After(failingTime):
		return &mounter.Failure{Kind: mounter.Stalled, Message: "the volume does not answer"}, nil
	}
}

// Checks returns nothing: no filesystem is checked before it is mounted.
func (Host) Checks() []mounter.Check { return nil }

// Helpers returns nothing: no system call is made in a helper process.
func (Host) Helpers() []mounter.Helpers { return nil }
