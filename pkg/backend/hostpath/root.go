package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/backend/internal/copier"
	"github.com/causeway-csi/causeway/pkg/backend/internal/quota"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

const (
	volumesDir   = store.Volumes
	snapshotsDir = store.Snapshots
	groupsDir    = store.Groups
	stagingDir   = store.Incomplete
	trashDir     = store.Trash
	recordFile   = store.Record
	dataDir      = store.Data
)

// root is an open root, with the abilities of its filesystem.
type root struct {
	*store.Store
	images             mounter.Images
	reflink, subvolume ability
}

// inPlace is store.InPlace. Errors: ErrUnavailable.
func (s *root) inPlace() error { return available(s.InPlace()) }

// makeObject is store.MakeObject. Errors: ErrUnavailable with store.ErrUndecided.
func (s *root) makeObject(ctx context.Context, dir, id string, fill func(incomplete *beneath.Dir) error) error {
	return available(s.MakeObject(ctx, dir, id, fill))
}

// dataPath returns the absolute path of the volume's data, without links: the source of its mounts.
func (s *root) dataPath(v *volume) string { return s.Real(s.dataName(v)) }

// dataName returns the path of the volume's data below the root.
func (s *root) dataName(v *volume) string { return path.Join(volumesDir, v.ID, s.dataFile(v.Kind)) }

// checkData returns an error unless the volume's data is present: fs.ErrNotExist, beneath.ErrType
// if a file of another type is at the path of the data, for example a link.
func (s *root) checkData(v *volume) error {
	want := fs.ModeDir
	if v.Kind == image {
		want = 0
	}
	_, err := s.Dir().Check(s.dataName(v), want)
	return err
}

// imageSize returns the size of an image in bytes. Errors: those of checkData, and of
// Images.ImageSize.
func (s *root) imageSize(v *volume) (int64, error) {
	if err := s.checkData(v); err != nil {
		return 0, err
	}
	return s.images.ImageSize(s.dataPath(v))
}

// dataFile returns the name of the data of a volume or snapshot in its directory.
func (s *root) dataFile(k kind) string {
	if k == image {
		return s.Image()
	}
	return dataDir
}

// incompleteImage returns the absolute path, without links, of the image in an incomplete
// directory.
func (s *root) incompleteImage(incomplete *beneath.Dir) string {
	return s.Real(stagingDir, filepath.Base(incomplete.Path()), s.Image())
}

// plain reports whether an image is a file with the bytes of its volume. All others, such as those
// of Windows, are copied while no volume is attached.
func plain(images mounter.Images) bool { return images.ImageExt() == "" }

// ability is an ability of the root's filesystem, which is probed until there is a result.
type ability struct {
	mu         sync.Mutex
	known, yes bool
}

// get returns the result of probe. A disk that is full or read-only gives no result, and is probed
// again the next time.
func (a *ability) get(probe func() (bool, error)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		yes, err := probe()
		a.yes, a.known = yes, !store.IsFull(err) && !store.IsReadOnly(err)
	}
	return a.yes
}

// subvolumes reports whether subvolumes can be made and removed below the root.
func (s *root) subvolumes() bool { return s.subvolume.get(s.canSubvolume) }

// reflinks reports whether files below the root can share blocks.
func (s *root) reflinks() bool { return s.reflink.get(s.canReflink) }

// canSubvolume finds out whether subvolumes can be made and removed below the root: not every btrfs
// permits both to every user.
func (s *root) canSubvolume() (bool, error) {
	staging, err := s.Dir().OpenDirFile(stagingDir)
	if err != nil {
		return false, err
	}
	defer staging.Close()
	name := "probe-" + store.Random()
	if _, err := quota.Make(quota.Mechanism{Kind: quota.Subvolume}, staging, name,
		quota.Options{Mode: 0o700}); err != nil {
		return false, err
	}
	if err := quota.Discard(staging, name, nil); err != nil {
		_ = s.Dir().Remove(path.Join(stagingDir, name)) // otherwise the next start sweeps it
		return false, err
	}
	return true, nil
}

// canReflink finds out whether files below the root can share blocks.
func (s *root) canReflink() (bool, error) {
	var files [2]*os.File
	for i := range files {
		f, name, err := s.Probe()
		if err != nil {
			return false, err
		}
		defer f.Close()
		defer s.Dir().Remove(name)
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

// mechanism returns the mechanism for limits of directories. With quota.ErrNotEnforced limits are
// impossible, and why has the reason and a remedy. The kind can be Subvolume nevertheless.
func (s *root) mechanism(ctx context.Context) (m quota.Mechanism, why error) {
	root, err := s.Dir().OpenDirFile(".")
	if err != nil {
		return m, err
	}
	defer root.Close()
	m, err = quota.Find(ctx, root)
	if m.Kind == quota.Subvolume && !s.subvolumes() {
		return quota.Mechanism{}, fmt.Errorf("%w: the driver is not permitted to make subvolumes", quota.ErrNotEnforced)
	}
	return m, err
}
