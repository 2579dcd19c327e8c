// Package links is the Host of a system on which a mount is a link. A Machine has the calls of the
// system. Package win has those of Windows.
package links

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
)

// links is a Mounter for systems without mounts of directories, such as Windows. A mount is a link
// for directories at the path. The text of the link is the source of the mount itself, never
// another mount. So a link is a reference to its source, and the links on the disk are the mount
// table. A record has the rest of a mount. The record is made before the link and removed after it:
// a record without its link has no effect.
//
// A link without a record was made by a driver whose records were lost, and counts as a mount,
// writable or read-only. A link that leads elsewhere than its record was made by another program:
// nothing is mounted there, and nothing can be mounted there until Unmount. A link into the kubelet
// directory is never a mount of a links.
type links struct {
	host    LinkHost
	kubelet string // clean
	PathForm
	records *linkRecords
	disks   *linkDisks                            // nil: this system has no disks for volumes
	shares  *mappings                             // nil: this machine has none
	usages  inflight.Group[string, mounter.Usage] // of directories and disks

	stores   stores // the directories of records, if this links has opened them
	unreadMu sync.Mutex
	unread   []unreadPath
}

// newLinks returns the Mounter for paths below kubelet. It finds the links of lost records.
func newLinks(host LinkHost, kubelet string, store recordStore, options ...linkOption) (*links, error) {
	form := host.Form()
	kubelet, err := form.Clean(kubelet)
	if err != nil {
		return nil, fmt.Errorf("kubelet directory: %w", err)
	}
	l := &links{host: host, kubelet: kubelet, PathForm: form,
		usages: inflight.Group[string, mounter.Usage]{Limit: inflight.NoLimit}}
	for _, o := range options {
		o(l)
	}
	if l.records, err = loadLinkRecords(store, form); err != nil {
		return nil, err
	}
	if err := l.adopt(); err != nil {
		return nil, fmt.Errorf("find links below %s: %w", kubelet, err)
	}
	if l.disks != nil {
		if err := l.disks.detachUnfinished(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// addShares gives l the shares of this machine. store has the records of the mappings. It removes
// mappings of this driver without links, later.
func (l *links) addShares(host ShareHost, store recordStore, calls *Worker) error {
	var err error
	l.shares, err = newMappings(host, store, l.rootUsed, calls)
	if err == nil {
		l.shares.sweep()
	}
	return err
}

// rootUsed reports whether a link leads to a share, or may do so.
func (l *links) rootUsed(root string) bool {
	if l.readAgain() != nil {
		return true
	}
	return slices.ContainsFunc(l.records.all(), func(r linkRecord) bool {
		if of, isShare := RootOf(r.Source); !isShare || of != root {
			return false
		}
		e, err := l.host.Entry(r.Path)
		return err == nil && e.Kind != PlainDir && e.Kind != PlainFile || err != nil && !errors.Is(err, fs.ErrNotExist)
	})
}

// CleanPath brings a path of a request into the form of the keys of locks. The kubelet sends one
// path in several forms. Errors: ErrPath.
func (l *links) CleanPath(path string) (string, error) { return l.Clean(path) }

// RuntimeReadOnly returns true: a link cannot be read-only.
func (l *links) RuntimeReadOnly() bool { return true }

func (l *links) Mount(ctx context.Context, m mounter.Mount, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	record, err := l.recordOf(m)
	if err != nil {
		return err
	}
	record.Path, err = l.target(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", mounter.ErrPath, err)
	}
	if err != nil {
		return err
	}
	mount := func(ctx context.Context) error { return l.mount(ctx, m, record) }
	if m.Kind == mounter.Image {
		return l.disks.flowOn(ctx, l.Key(record.Path), l.Key(record.Image), mount)
	}
	return l.exclusively(ctx, record.Path, l.isFolder(record.Source), mount)
}

// mount makes the mount of a record at a path whose parents are directories.
func (l *links) mount(ctx context.Context, m mounter.Mount, record linkRecord) error {
	path := record.Path
	at, err := l.stateAt(path)
	if err != nil {
		return err
	}
	switch {
	case at.state == foreign:
		return fmt.Errorf("%w: %s is %s, and not a directory", mounter.ErrPath, path, at.entry.Kind)
	case at.state == replaced:
		return fmt.Errorf("%w: the link at %s leads to %s, but %s was mounted there: unmount the path",
			mounter.ErrConflict,
			path, at.entry.Text, at.record.Source)
	case at.state == mounted && !at.record.equal(record, l.PathForm):
		return fmt.Errorf("%w: %s", mounter.ErrConflict, path)
	}
	if root, isShare := RootOf(record.Source); isShare {
		release, err := l.openShare(ctx, m, root, record.Source, at.state == mounted)
		if err != nil {
			return err
		}
		defer release()
	}
	switch {
	case at.state == mounted && !at.record.adopted:
		return nil
	case at.state == mounted:
		return l.records.put(record)
	}
	if err := l.releaseOther(at.record, record); err != nil {
		return err
	}
	if m.Kind == mounter.Image || m.Kind == mounter.BlockDevice {
		return l.mountDisk(ctx, m, record, at)
	}
	if l.isFolder(record.Source) {
		if state, err := l.stateOfFolder(record.Source); err != nil || state != mounted {
			return errors.Join(err, fmt.Errorf("%w: nothing is mounted any more at %s, the source of another mount",
				mounter.ErrPath, m.Source))
		}
	}
	return l.makeLink(ctx, record, at)
}

// recordOf returns the record of a mount of m, without its path. Errors: those of Mount for m and
// its source.
func (l *links) recordOf(m mounter.Mount) (linkRecord, error) {
	onDisk := m.Kind == mounter.Image || m.Kind == mounter.BlockDevice
	if m.Kind != mounter.Directory && (!onDisk || l.disks == nil) && (m.Kind != mounter.Share || l.shares == nil) {
		return linkRecord{}, fmt.Errorf("%w: a mount of kind %q on this system", errors.ErrUnsupported, m.Kind)
	}
	if onDisk {
		if err := mounter.Windows.Supports(m.Kind, m.FSType, nil); err != nil {
			return linkRecord{}, err
		}
		if err := mounter.CheckFormat(m.FSType, m.Format); err != nil {
			return linkRecord{}, err
		}
	}
	if err := mounter.Windows.CheckOptions(mounter.ErrOption, m.Kind, m.FSType, m.Options); err != nil {
		return linkRecord{}, err
	}
	readOnly := isReadOnlyMount(m)
	if onDisk {
		record, err := l.folder(m)
		record.ReadOnly = readOnly
		return record, err
	}
	source, from, err := l.sourceOf(m)
	if err != nil {
		return linkRecord{}, err
	}
	if from != nil && from.ReadOnly && !readOnly {
		return linkRecord{}, fmt.Errorf("%w: %s", mounter.ErrReadOnly, m.Source)
	}
	record := linkRecord{Kind: m.Kind, Source: source, ReadOnly: readOnly}
	if from != nil {
		record.Image, record.Serial = from.Image, from.Serial
	}
	return record, nil
}

// isReadOnlyMount reports whether m is read-only, by itself or by an option.
func isReadOnlyMount(m mounter.Mount) bool {
	readOnly := m.ReadOnly
	for _, o := range m.Options {
		readOnly = o == "ro" || readOnly && (m.ReadOnly || o != "rw")
	}
	return readOnly
}

// make makes the link of a record in place of the entry at its path. After an error the path is as
// it was before, but a dead link becomes a directory.
func (l *links) makeLink(ctx context.Context, record linkRecord, at pathState) error {
	// The record comes after: a link that leads elsewhere than its record is of another program,
	// and the files in a directory are of no mount.
	var err error
	switch at.state {
	case directory:
		err = l.host.Rmdir(record.Path)
	case dead:
		err = l.host.Unlink(record.Path)
	}
	isMade := false
	if err == nil {
		err = l.records.put(record)
	}
	if err == nil {
		err = l.host.Link(record.Source, record.Path)
		isMade = err == nil
	}
	if err == nil {
		err = l.verify(ctx, record)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("mount %s at %s: %w", record.Source, record.Path, err)
	e, look := l.host.Entry(record.Path)
	switch {
	case look == nil && (isMade && e.Kind == OtherLink || e.Kind == DirLink && (isMade || e.Text == record.Source)):
		err = errors.Join(err, l.host.Unlink(record.Path))
	case look == nil: // the entry from before
		return errors.Join(err, l.records.remove(record.Path))
	}
	if at.state != missing {
		err = errors.Join(err, l.host.Mkdir(record.Path))
	}
	return errors.Join(err, l.records.remove(record.Path))
}

// verify returns an error unless the link of a record is there, with its text, as a link for
// directories. A system call may report success and have made nothing, or a link for files. A link
// to a share must also lead there: a policy of the node can forbid links from local to remote.
func (l *links) verify(ctx context.Context, record linkRecord) error {
	e, err := l.host.Entry(record.Path)
	if err == nil && (e.Kind != DirLink || e.Text != record.Source) {
		err = fmt.Errorf("%w: the system made %s with the text %q", mounter.ErrPath, e.Kind, e.Text)
	}
	if _, isShare := RootOf(record.Source); err == nil && isShare {
		err = l.shares.probe(ctx, record.Path)
	}
	return err
}

func (l *links) Unmount(ctx context.Context, path string) error {
	return l.unmount(ctx, path, func(path string) error {
		err := l.host.Mkdir(path)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	})
}

// unmount removes the link at path, calls leave for the entry that is to stay there instead, and
// forgets the mount. An interrupted call is continued by the next one.
func (l *links) unmount(ctx context.Context, path string, leave func(path string) error) error {
	clean, err := l.target(path)
	if errors.Is(err, fs.ErrNotExist) { // the kubelet has removed the link with its parent
		leave = func(string) error { return nil }
		clean, err = l.Clean(path)
	}
	if err != nil {
		return err
	}
	path = clean
	return l.exclusively(ctx, path, false, func(context.Context) error { return l.unlinkAt(path, leave) })
}

// unlinkAt is unmount for a path whose parents are directories.
func (l *links) unlinkAt(path string, leave func(path string) error) error {
	at, err := l.stateAt(path)
	if err != nil {
		return err
	}
	switch at.state {
	case foreign:
		if at.entry.Kind == PlainFile { // which is no mount
			return nil
		}
		return fmt.Errorf("%w: %s is %s of another program", mounter.ErrPath, path, at.entry.Kind)
	case mounted, replaced, dead:
		if err := l.host.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		err = leave(path)
	case missing:
		if at.record != nil { // an earlier call has removed the link
			err = leave(path)
		}
	}
	if err == nil && at.record != nil && l.isFolder(at.record.Source) {
		err = l.release(*at.record)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := l.records.remove(path); err != nil {
		return err
	}
	if l.shares != nil {
		l.shares.sweep()
	}
	return nil
}

func (l *links) Remove(ctx context.Context, path string) error {
	if err := l.unmount(ctx, path, func(string) error { return nil }); err != nil {
		return err
	}
	path, err := l.Clean(path)
	if err != nil {
		return err
	}
	switch e, err := l.host.Entry(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case e.Kind != PlainDir:
		return fmt.Errorf("remove %s: %w: this driver has not made %s", path, mounter.ErrPath, e.Kind)
	}
	if err := l.host.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

func (l *links) Mounted(_ context.Context, m mounter.Mount, path string) (bool, error) {
	path, err := l.target(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	source, err := l.textOf(m)
	if err != nil {
		return false, err
	}
	at, err := l.stateAt(path)
	if err != nil {
		return false, err
	}
	isSame := at.state == mounted && sourceKey(l.PathForm, at.record.Source) == sourceKey(l.PathForm, source)
	return isSame, at.foreign(path)
}

func (l *links) Occupied(_ context.Context, path string) (bool, error) {
	path, err := l.target(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	at, err := l.stateAt(path)
	if err != nil {
		return false, err
	}
	return at.state == mounted || at.state == replaced, at.foreign(path)
}

func (l *links) OtherTargets(_ context.Context, path string) ([]string, error) {
	path, err := l.target(path)
	if err != nil {
		return nil, err
	}
	at, err := l.stateAt(path)
	if err != nil || at.state != mounted {
		return nil, err
	}
	var others []string
	for _, r := range l.records.withSource(at.record.Source) {
		if l.Key(r.Path) == l.Key(path) {
			continue
		}
		other, err := l.stateAt(r.Path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", mounter.ErrBusy, err)
		}
		if other.state == mounted {
			others = append(others, r.Path)
		}
	}
	slices.Sort(others)
	return others, nil
}

// MountPointsOf is that of Images. A path counts if its record or the link itself leads to source.
func (l *links) MountPointsOf(source string) ([]string, error) {
	source, err := l.Clean(source)
	if err != nil {
		return nil, err
	}
	if _, err := l.noLinks(source); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := l.readAgain(); err != nil {
		return nil, err
	}
	var paths []string
	folder := ""
	if l.disks != nil {
		folder = l.Join(l.disks.folders, folderOf(mounter.Image, l.Key(source)))
	}
	for _, r := range l.records.all() {
		at, err := l.stateAt(r.Path)
		if err != nil {
			return nil, fmt.Errorf("look for mounts of %s: %w", source, err)
		}
		if at.state != mounted && at.state != dead && at.state != replaced {
			continue
		}
		if l.isWithin(source, r.Source) || l.leadsInto(source, at.entry.Text) ||
			r.Image != "" && l.isWithin(source, r.Image) || folder != "" && l.Key(at.entry.Text) == l.Key(folder) {
			paths = append(paths, r.Path)
		}
	}
	slices.Sort(paths)
	if len(paths) == 0 {
		return l.attachedAs(source)
	}
	return paths, nil
}

// Grow makes the volume of a disk as large as the disk. A directory has nothing to grow.
func (l *links) Grow(ctx context.Context, m mounter.Mount, path string) error {
	if l.disks == nil || m.Kind != mounter.Image && m.Kind != mounter.BlockDevice {
		return nil
	}
	path, err := l.target(path)
	if err != nil {
		return err
	}
	return l.growDisk(ctx, m, path)
}

func (l *links) Usage(ctx context.Context, path string) (mounter.Usage, error) {
	path, err := l.target(path)
	if err != nil {
		return mounter.Usage{}, err
	}
	at, err := l.stateAt(path)
	switch {
	case err != nil:
		return mounter.Usage{}, err
	case at.state == missing:
		return mounter.Usage{}, NotExist("usage", path)
	case at.state == mounted:
		if _, isShare := RootOf(at.record.Source); isShare && l.shares != nil {
			return l.shares.usage(ctx, at.record.Source)
		}
		return l.usageOf(ctx, at.record.Source)
	case at.state == directory:
		return l.usageOf(ctx, path)
	}
	return mounter.Usage{}, fmt.Errorf("%w: %s is %s", mounter.ErrPath, path, at.entry.Kind)
}

// usageOf returns the usage of the filesystem with a directory, until ctx ends: an attached disk
// can stop answering.
func (l *links) usageOf(ctx context.Context, dir string) (mounter.Usage, error) {
	return l.usages.Do(ctx, "usage of "+dir, func() (mounter.Usage, error) { return l.host.Usage(dir) })
}

// target returns a path of a request in its one form. Errors: ErrPath if it is not below the
// kubelet directory, or if a parent is not a directory; fs.ErrNotExist for a missing parent.
func (l *links) target(path string) (string, error) {
	clean, err := l.Clean(path)
	if err != nil {
		return "", err
	}
	names, ok := l.elements(l.kubelet, clean)
	if !ok {
		return "", fmt.Errorf("%w: %.128q is not below %q", mounter.ErrPath, path, l.kubelet)
	}
	return clean, l.areDirs(l.kubelet, names[:len(names)-1])
}

// areDirs returns an error unless names are directories, each in the one before, and the first in
// dir. Errors: ErrPath, fs.ErrNotExist.
func (l *links) areDirs(dir string, names []string) error {
	for _, name := range names {
		dir = l.Join(dir, name)
		e, err := l.host.Entry(dir)
		if err != nil {
			return err
		}
		if e.Kind != PlainDir {
			return fmt.Errorf("%w: %s is %s", mounter.ErrPath, dir, e.Kind)
		}
	}
	return nil
}

// source returns the directory that a mount of path shows: path itself, or the source of the mount
// at path, with its record. Errors: ErrPath for a path through a link, and for a path in the
// kubelet directory without a mount; fs.ErrNotExist.
func (l *links) source(path string) (string, *linkRecord, error) {
	path, err := l.Clean(path)
	if err != nil {
		return "", nil, fmt.Errorf("source: %w", err)
	}
	if !l.isWithin(l.kubelet, path) {
		kind, err := l.noLinks(path)
		if err == nil && kind != PlainDir {
			err = fmt.Errorf("%w: source %s is %s", mounter.ErrPath, path, kind)
		}
		return path, nil, err
	}
	path, err = l.target(path)
	if err != nil {
		return "", nil, fmt.Errorf("source: %w", err)
	}
	at, err := l.stateAt(path)
	if err != nil {
		return "", nil, err
	}
	if at.state != mounted {
		return "", nil, fmt.Errorf("%w: nothing is mounted at %s, the source of another mount", mounter.ErrPath, path)
	}
	return at.record.Source, at.record, nil
}

// noLinks returns the kind of the entry at path, a directory or file that is reached through no
// link. Errors: ErrPath, fs.ErrNotExist.
func (l *links) noLinks(path string) (EntryKind, error) {
	root := path
	for parent := l.dir(root); parent != root; parent = l.dir(root) {
		root = parent
	}
	names, ok := l.elements(root, path)
	if !ok {
		return 0, fmt.Errorf("%w: %s is the root of a filesystem", mounter.ErrPath, path)
	}
	if err := l.areDirs(root, names[:len(names)-1]); err != nil {
		return 0, err
	}
	e, err := l.host.Entry(path)
	if err == nil && e.Kind != PlainDir && e.Kind != PlainFile {
		err = fmt.Errorf("%w: %s is %s", mounter.ErrPath, path, e.Kind)
	}
	return e.Kind, err
}

// pathState is the state of a path.
type pathState struct {
	state  linkState
	entry  LinkEntry
	record *linkRecord // nil: none
}

type linkState int

const (
	missing   linkState = iota // there may be a record of an interrupted call
	directory                  // of no mount
	mounted                    // with a record, which may be adopted
	dead                       // a link to a missing directory
	replaced                   // a link that leads elsewhere than its record
	foreign                    // a file, a link into the kubelet directory, or another reparse point
)

// foreign returns ErrPath for a link of another program.
func (s pathState) foreign(path string) error {
	if s.state == foreign && s.entry.Kind != PlainFile {
		return fmt.Errorf("%w: %s is %s of another program", mounter.ErrPath, path, s.entry.Kind)
	}
	return nil
}

// at returns the state of a clean path whose parents are directories. It never asks the server of a
// share: a link to one is not dead.
func (l *links) stateAt(path string) (pathState, error) {
	s := pathState{}
	if r, ok := l.records.get(path); ok {
		s.record = &r
	}
	var err error
	if s.entry, err = l.host.Entry(path); errors.Is(err, fs.ErrNotExist) {
		return s, nil
	} else if err != nil {
		return s, err
	}
	switch {
	case s.entry.Kind == PlainDir:
		s.state = directory
		return s, nil
	case s.entry.Kind != DirLink || l.leadsInto(l.kubelet, s.entry.Text) && !l.isFolder(s.entry.Text):
		s.state = foreign
		return s, nil
	case s.record == nil:
		r := linkRecord{Path: path, Kind: mounter.Directory, Source: s.entry.Text, adopted: true}
		if text, _, isShare := ParseUNC(s.entry.Text); isShare {
			r.Kind, r.Source = mounter.Share, text
		} else if !l.isPath(s.entry.Text) {
			s.state = foreign
			return s, nil
		}
		s.record = &r
	case sourceKey(l.PathForm, s.record.Source) != sourceKey(l.PathForm, s.entry.Text):
		s.state = replaced
		return s, nil
	}
	if l.isFolder(s.record.Source) {
		s.state, err = l.stateOfFolder(s.record.Source)
		return s, err
	}
	if _, isShare := RootOf(s.record.Source); isShare {
		s.state = mounted
		return s, nil
	}
	e, err := l.host.Entry(s.record.Source)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && e.Kind != PlainDir:
		s.state = dead
	case err != nil:
		return s, err
	default:
		s.state = mounted
	}
	return s, nil
}

// isPath reports whether the text of a link is the clean path of a local directory.
func (l *links) isPath(text string) bool {
	clean, err := l.Clean(text)
	return err == nil && clean == text
}

// leadsInto reports whether the text of a link leads to dir, or below it.
func (l *links) leadsInto(dir, text string) bool {
	text, err := l.Clean(text)
	return err == nil && l.isWithin(dir, text)
}
