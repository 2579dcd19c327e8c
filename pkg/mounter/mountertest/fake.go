// Package mountertest has Hosts for tests: a Fake, and the FakeWindows of a Windows node.
package mountertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/keylock"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// Fake is a Host that keeps its mounts in memory. It makes and removes the directories of mount
// points, as the real Host does, and returns the same errors in the same cases. The files of a
// source do not appear at a path. The zero value is not usable: see NewFake.
type Fake struct {
	Err      error                      // if set, every call that changes something returns it and changes nothing
	Capacity mounter.Usage              // the result of Usage
	Failures map[string]mounter.Failure // the result of Failing, for images that are mounted
	Keeps    bool                       // a mounted Share keeps its credentials, as with Linux before 6.9

	// Filesystem is the result of IsFilesystem. A Fake does not know the mounts of the machine.
	Filesystem bool

	dir    string
	images keylock.Locks[string] // by source
	mu     sync.Mutex
	mounts map[string]mounter.Mount // by path; Source is where the data is, not another mount of it
	files  map[string]bool          // paths of files on which a device was mounted
}

// NewFake returns a Fake for paths below dir, which must exist.
func NewFake(dir string) *Fake {
	return &Fake{dir: dir, mounts: map[string]mounter.Mount{}, files: map[string]bool{}}
}

// Mounts returns all mounts, by path.
func (f *Fake) Mounts() map[string]mounter.Mount {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]mounter.Mount, len(f.mounts))
	for path, m := range f.mounts {
		all[path] = m
	}
	return all
}

// Supports is that of Linux.
func (f *Fake) Supports(k mounter.Kind, fsType string, options []string) error {
	return mounter.Linux.Supports(k, fsType, options)
}

// Mount records m at path, and makes the directories and files of a real mount. Errors: those of a
// real Host, and Err.
func (f *Fake) Mount(ctx context.Context, m mounter.Mount, path string) error {
	if err := errors.Join(ctx.Err(), f.Err); err != nil {
		return err
	}
	if err := mounter.CheckOptions(m.Kind, m.FSType, m.Options); err != nil {
		return err
	}
	if err := normalize(&m); err != nil {
		return err
	}
	release, err := f.lockImage(ctx, m.Source)
	if err != nil {
		return err
	}
	defer release()
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.statBelow(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", mounter.ErrPath, err)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(f.noLinks(m.Source), f.checkSource(m)); err != nil {
		return err
	}
	if from, ok := f.mounts[m.Source]; ok {
		if m.Kind != mounter.Device && from.ReadOnly && !m.ReadOnly {
			return fmt.Errorf("%w: %s", mounter.ErrReadOnly, m.Source)
		}
		m.Source, m.Options = from.Source, slices.Concat(from.Options, m.Options)
	}
	if m.Kind == mounter.Device {
		for other, o := range f.mounts {
			if o.Kind == mounter.Device && o.Source == m.Source && o.ReadOnly != m.ReadOnly && other != path {
				return fmt.Errorf("%w: %s", mounter.ErrReadOnly, other)
			}
		}
	}
	m = effective(m)
	if m.IsDevice() && m.Kind != mounter.Device {
		return f.mountDisk(m, at, path)
	}
	return f.put(m, at, path)
}

// normalize gives a Share the form of its source in which the Fake compares sources. Errors:
// ErrPath.
func normalize(m *mounter.Mount) error {
	if m.Kind != mounter.Share {
		return nil
	}
	src, err := mounter.ParseShare(m.Source)
	if err != nil {
		return err
	}
	src.Share = strings.ToLower(src.Share)
	m.Source = src.String()
	return nil
}

// lockImage takes the lock of the mount at path, or of path itself if nothing is mounted there.
func (f *Fake) lockImage(ctx context.Context, path string) (release func(), err error) {
	f.mu.Lock()
	m, ok := f.mountAt(path)
	f.mu.Unlock()
	if ok {
		path = m.Source
	}
	return f.images.Lock(ctx, path)
}

// put mounts m at path. at is the current state of path.
func (f *Fake) put(m mounter.Mount, at fs.FileInfo, path string) error {
	old, mounted := f.mounts[path]
	_, disk := f.mounts[filepath.Join(path, mounter.DeviceName)]
	switch {
	case mounted && equal(old, m):
		if m.Kind == mounter.Share && m.Credentials != (mounter.Credentials{}) {
			if f.Keeps && m.Credentials != old.Credentials {
				return fmt.Errorf("%w: %s", mounter.ErrCredentials, path)
			}
			old.Credentials = m.Credentials
			f.mounts[path] = old
		}
		return nil
	case mounted || disk:
		return fmt.Errorf("%w: %s", mounter.ErrConflict, path)
	case at == nil && m.Kind == mounter.Device:
		if err := os.WriteFile(path, nil, 0o640); err != nil {
			return err
		}
	case at == nil:
		if err := os.Mkdir(path, 0o750); err != nil {
			return err
		}
	case at.IsDir() == (m.Kind == mounter.Device):
		return fmt.Errorf("%w: %s is a file where a directory is needed, or the other way round", mounter.ErrPath, path)
	case at.IsDir():
		if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
			return errors.Join(fmt.Errorf("%w: %s", mounter.ErrNotEmpty, path), err)
		}
	case at.Size() > 0:
		return fmt.Errorf("%w: %s", mounter.ErrNotEmpty, path)
	}
	f.mounts[path] = m
	if m.Kind == mounter.Device {
		f.files[path] = true
	}
	return nil
}

// mountDisk makes the device in a directory, as the real Host does.
func (f *Fake) mountDisk(m mounter.Mount, at fs.FileInfo, path string) error {
	node := filepath.Join(path, mounter.DeviceName)
	if old, ok := f.mounts[node]; ok && equal(old, m) {
		return nil
	}
	if err := f.put(m, at, path); err != nil {
		return err
	}
	delete(f.mounts, path)
	f.mounts[node] = m
	return os.WriteFile(node, nil, 0o640)
}

// checkSource returns an error unless the kind of m can have m's source.
func (f *Fake) checkSource(m mounter.Mount) error {
	if m.Kind == mounter.Share {
		return m.Credentials.Check()
	}
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if info.IsDir() != (m.Kind == mounter.Directory) {
		return &fs.PathError{Op: "mount", Path: m.Source,
			Err: errors.New("a file where a directory is needed, or the other way round")}
	}
	if m.Kind == mounter.BlockDevice {
		size, err := sizeOfSource(m.Source)
		if err != nil {
			return err
		}
		return f.checkDevice(m, size)
	}
	if m.Kind != mounter.Image {
		return nil
	}
	id, err := readFake(m)
	if err != nil || m.FSType == "ext4" { // which permits equal UUIDs
		return err
	}
	for path, other := range f.mounts {
		if other.Kind != mounter.Image || other.Source == m.Source || other.FSType != m.FSType {
			continue
		}
		if used, err := readFake(other); err == nil && used == id {
			return fmt.Errorf("%w: %s has the UUID of the filesystem that is mounted at %s", mounter.ErrFormat,
				m.Source, path)
		}
	}
	return nil
}

// sizeOfSource returns the size in bytes of a file or of a block device, whose node has the length
// 0.
func sizeOfSource(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return file.Seek(0, io.SeekEnd)
}

// checkDevice makes the filesystem of a BlockDevice if its file, which plays the device, is blank.
func (f *Fake) checkDevice(m mounter.Mount, size int64) error {
	if size < m.Size {
		return mounter.TooSmall(m, size)
	}
	if m.IsDevice() {
		return nil
	}
	if err := mounter.CheckFormat(m.FSType, m.Format); err != nil {
		return err
	}
	if m.Serial == "" {
		return fmt.Errorf("%w: the storage gives no serial number of %s", mounter.ErrDevice, m.Source)
	}
	file, err := os.OpenFile(m.Source, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	head := make([]byte, fakeUUID)
	if _, err := io.ReadFull(file, head); err != nil && !errors.Is(err, io.EOF) &&
		!errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if strings.Trim(string(head), "\x00") != "" {
		if _, err := readFake(m); err != nil {
			return fmt.Errorf("%w: it is not formatted: %w", mounter.ErrDevice, err)
		}
		return nil
	}
	if m.ReadOnly {
		return fmt.Errorf("%w: %s has no filesystem yet: it must be mounted for writing first", mounter.ErrDevice,
			m.Source)
	}
	return formatFake(file, m.FSType)
}

// The start of an image with a filesystem: this text, its type, and the offset of its UUID.
const (
	fakeFormat = "fake filesystem: "
	fakeUUID   = 32
)

// readFake returns the UUID of the filesystem in an Image. Errors: ErrFormat if the image has
// another type.
func readFake(m mounter.Mount) (id string, err error) {
	file, err := os.Open(m.Source)
	if err != nil {
		return "", err
	}
	defer file.Close()
	head := make([]byte, fakeUUID+len(rand.Text()))
	if _, err := io.ReadFull(file, head); err != nil || !strings.HasPrefix(string(head), fakeFormat+m.FSType+"\x00") {
		return "", fmt.Errorf("%w: %s", mounter.ErrFormat, m.Source)
	}
	return string(head[fakeUUID:]), nil
}

// ImageExt is that of Linux.
func (f *Fake) ImageExt() string { return "" }

// MakeImage makes a sparse file, with the type of the filesystem at its start. Errors: those of a
// real Host, and Err.
func (f *Fake) MakeImage(ctx context.Context, path string, size int64, fsType string) error {
	if err := errors.Join(ctx.Err(), f.Err); err != nil {
		return err
	}
	if fsType != "" {
		if err := mounter.CheckFSType(fsType); err != nil {
			return err
		}
		if err := f.Supports(mounter.Image, fsType, nil); err != nil {
			return err
		}
	}
	if err := f.noLinks(filepath.Dir(path)); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = file.Truncate(size)
	if err == nil && fsType != "" {
		err = formatFake(file, fsType)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// GrowImage makes the file longer. Errors: those of a real Host, and Err.
func (f *Fake) GrowImage(ctx context.Context, path string, size int64) error {
	if err := errors.Join(ctx.Err(), f.Err); err != nil {
		return err
	}
	now, err := f.ImageSize(path)
	if err != nil || now >= size {
		return err
	}
	return os.Truncate(path, size)
}

// ImageSize returns the size of the file. Errors: those of a real Host.
func (f *Fake) ImageSize(path string) (int64, error) {
	if err := f.noLinks(path); err != nil {
		return 0, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%w: %s is not a file", mounter.ErrFormat, path)
	}
	return info.Size(), nil
}

// formatFake writes the type of the filesystem to the start of the image.
func formatFake(image *os.File, fsType string) error {
	head := make([]byte, fakeUUID, 2*fakeUUID)
	copy(head, fakeFormat+fsType)
	_, err := image.WriteAt(append(head, rand.Text()...), 0)
	return err
}

// NewUUID replaces the UUID in the image. The file changes, also in the Fake. Errors: ErrFormat,
// ErrBusy, Err.
func (f *Fake) NewUUID(ctx context.Context, image *os.File, fsType string, _ int) error {
	if _, ok := options.Image[fsType]; !ok {
		return fmt.Errorf("%w: %.32q", mounter.ErrFormat, fsType)
	}
	if err := errors.Join(ctx.Err(), f.Err); err != nil {
		return err
	}
	if users, _ := f.MountPointsOf(image.Name()); len(users) > 0 {
		return fmt.Errorf("%w: %s is at %s", mounter.ErrBusy, image.Name(), users[0])
	}
	if _, err := readFake(mounter.Mount{Source: image.Name(), FSType: fsType}); err != nil {
		return err
	}
	_, err := image.WriteAt([]byte(rand.Text()), fakeUUID)
	return err
}

// Freeze blocks the other calls of the Fake. Freeze does not stop writes to files, which are not
// the Fake's.
func (f *Fake) Freeze(ctx context.Context, _ string, images []string, limit time.Duration,
	copyData func(ctx context.Context) error) error {
	for _, image := range images {
		info, err := os.Lstat(image)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%w: %s is not a file", mounter.ErrFormat, image)
		}
	}
	release, err := f.images.Lock(ctx, slices.Compact(slices.Sorted(slices.Values(images)))...)
	if err != nil {
		return err
	}
	defer release()
	if f.Err != nil {
		return f.Err
	}
	end := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	err = copyData(ctx)
	if time.Now().After(end) && slices.ContainsFunc(images, f.isImage) {
		err = errors.Join(err, fmt.Errorf("%w: it took longer than %s", mounter.ErrThawed, limit))
	}
	return err
}

// Trim does nothing: the fake's images have no filesystem.
func (f *Fake) Trim(context.Context, string, string) (int64, error) { return 0, f.Err }

// isImage reports whether the filesystem in a file is mounted.
func (f *Fake) isImage(file string) bool {
	for _, m := range f.Mounts() {
		if m.Source == file && m.Kind != mounter.Disk && m.Kind != mounter.Device {
			return true
		}
	}
	return false
}

// Checks returns nothing: the fake checks no filesystem.
func (f *Fake) Checks() []mounter.Check { return nil }

// Helpers returns nothing: the fake has no processes.
func (f *Fake) Helpers() []mounter.Helpers { return nil }

// Failing returns those of Failures that are mounted.
func (f *Fake) Failing() (map[string]mounter.Failure, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]mounter.Failure{}
	for _, m := range f.mounts {
		if failure, ok := f.Failures[m.Source]; ok {
			all[m.Source] = failure
		}
	}
	return all, nil
}

// Detach detaches nothing: no program unmounts anything behind the back of a Fake. Errors:
// fs.ErrNotExist, ErrPath, Err.
func (f *Fake) Detach(_ context.Context, image string) (string, error) {
	return "", errors.Join(f.noLinks(image), f.Err)
}

// Tune changes the result of Mounts.
func (f *Fake) Tune(ctx context.Context, m mounter.Mount) error {
	if m.Kind != mounter.Image && m.Kind != mounter.Disk {
		return nil
	}
	release, err := f.lockImage(ctx, m.Source)
	if err != nil {
		return err
	}
	defer release()
	if err := f.noLinks(m.Source); err != nil || f.Err != nil {
		return errors.Join(err, f.Err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for path, at := range f.mounts {
		if at.Source == m.Source && at.Kind == m.Kind {
			at.Buffered, at.ReadAhead = m.Buffered, m.ReadAhead
			f.mounts[path] = at
		}
	}
	return nil
}

// Unmount removes the mount at path. A path without a mount is no error. Errors: ErrPath, ErrBusy
// for a mount below path, Err.
func (f *Fake) Unmount(ctx context.Context, path string) error {
	if f.Err != nil {
		return f.Err
	}
	release, err := f.lockImage(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.statBelow(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	node := filepath.Join(path, mounter.DeviceName)
	for other := range f.mounts {
		if other != node && strings.HasPrefix(other, path+string(filepath.Separator)) {
			return fmt.Errorf("unmount %s: %w", path, mounter.ErrBusy)
		}
	}
	if _, ok := f.mounts[node]; ok {
		delete(f.mounts, node)
		return os.Remove(node)
	}
	delete(f.mounts, path)
	return nil
}

// Remove is Unmount, followed by the removal of path. Errors: ErrPath, ErrNotEmpty, Err.
func (f *Fake) Remove(ctx context.Context, path string) error {
	if err := f.Unmount(ctx, path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !info.IsDir() && (info.Size() > 0 || !f.files[path]) {
		return fmt.Errorf("remove %s: %w: this driver has not made the file", path, mounter.ErrPath)
	}
	delete(f.files, path)
	if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
		return fmt.Errorf("remove %s: %w", path, mounter.ErrNotEmpty)
	}
	return os.Remove(path)
}

// Mounted reports whether the mount at path is m. Errors: ErrPath.
func (f *Fake) Mounted(_ context.Context, m mounter.Mount, path string) (bool, error) {
	if m.Kind == mounter.BlockDevice && m.Source == "" { // it is not attached
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.statBelow(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if err := errors.Join(f.noLinks(m.Source), normalize(&m)); err != nil {
		return false, err
	}
	at, ok := f.mountAt(path)
	if from, linked := f.mounts[m.Source]; linked {
		m.Source = from.Source
	}
	return ok && at.Source == m.Source, nil
}

// Grow does nothing: a fake filesystem has the size of its image.
func (f *Fake) Grow(ctx context.Context, _ mounter.Mount, path string) error {
	release, err := f.lockImage(ctx, path)
	if err != nil {
		return err
	}
	defer release()
	return f.Err
}

// Occupied reports whether there is a mount at path. Errors: ErrPath.
func (f *Fake) Occupied(_ context.Context, path string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.statBelow(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	_, ok := f.mountAt(path)
	return ok, nil
}

// at returns the mount at path, or in path as a Disk.
func (f *Fake) mountAt(path string) (mounter.Mount, bool) {
	m, ok := f.mounts[path]
	if !ok {
		m, ok = f.mounts[filepath.Join(path, mounter.DeviceName)]
	}
	return m, ok
}

// OtherTargets returns the other paths with the source of path, sorted. Errors: ErrPath.
func (f *Fake) OtherTargets(_ context.Context, path string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.statBelow(path); err != nil {
		return nil, err
	}
	var paths []string
	if at, ok := f.mounts[path]; ok {
		for other, m := range f.mounts {
			if other != path && m.Source == at.Source {
				paths = append(paths, other)
			}
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// MountPointsOf returns every path at which source or something below it is mounted, sorted.
func (f *Fake) MountPointsOf(source string) ([]string, error) {
	if err := f.noLinks(source); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var paths []string
	for path, m := range f.mounts {
		if m.Source == source || strings.HasPrefix(m.Source, source+string(filepath.Separator)) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// IsFilesystem returns Filesystem.
func (f *Fake) IsFilesystem(string) (bool, error) { return f.Filesystem, nil }

// Usage returns Capacity, or the size of a device. Errors: ErrPath, fs.ErrNotExist.
func (f *Fake) Usage(_ context.Context, path string) (mounter.Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.statBelow(path)
	if err != nil {
		return mounter.Usage{}, err
	}
	if m, ok := f.mountAt(path); ok && m.IsDevice() {
		info, err := os.Stat(m.Source)
		if err != nil {
			return mounter.Usage{}, err
		}
		return mounter.Usage{TotalBytes: info.Size()}, nil
	}
	if at == nil {
		return mounter.Usage{}, &fs.PathError{Op: "statfs", Path: path, Err: fs.ErrNotExist}
	}
	return f.Capacity, nil
}

// statBelow returns the state of path, or nil. Errors: ErrPath, fs.ErrNotExist for the parent.
func (f *Fake) statBelow(path string) (fs.FileInfo, error) {
	rel, err := paths.Below(f.dir, path)
	if err != nil {
		return nil, err
	}
	at := f.dir
	var info fs.FileInfo
	for _, name := range strings.Split(rel, string(filepath.Separator)) {
		if info != nil && !info.IsDir() {
			return nil, fmt.Errorf("%w: %s is not a directory", mounter.ErrPath, at)
		}
		at = filepath.Join(at, name)
		info, err = os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) && at == path {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%w: %s is a symbolic link", mounter.ErrPath, at)
		}
	}
	return info, nil
}

// noLinks returns ErrPath if an element of source is a link. The path of the Fake's directory may
// have links.
func (f *Fake) noLinks(source string) error {
	if strings.HasPrefix(source, "//") { // a Share
		return nil
	}
	if _, err := paths.Below(f.dir, source); err == nil {
		info, err := f.statBelow(source)
		if err == nil && info == nil {
			err = &fs.PathError{Op: "open", Path: source, Err: fs.ErrNotExist}
		}
		return err
	}
	resolved, err := filepath.EvalSymlinks(source)
	if err == nil && resolved != source {
		err = fmt.Errorf("%w: %s leads through a symbolic link", mounter.ErrPath, source)
	}
	return err
}

// effective returns m with the options that count in the end, so that two mounts can be compared.
func effective(m mounter.Mount) mounter.Mount {
	if m.IsDevice() {
		return m
	}
	on := map[string]bool{"nosuid": true}
	for _, o := range m.Options {
		switch o {
		case "ro", "rw":
			on["ro"] = o == "ro"
		case "exec", "noexec":
			on["noexec"] = o == "noexec"
		case "suid", "nosuid":
			on["nosuid"] = o == "nosuid"
		case "relatime", "noatime", "strictatime":
			on["relatime"], on["noatime"], on["strictatime"] = false, false, false
			on[o] = true
		default:
			on[o] = true
		}
	}
	m.ReadOnly = m.ReadOnly || on["ro"]
	m.Options = nil
	for o, yes := range on {
		if yes && o != "ro" && o != "nodev" {
			m.Options = append(m.Options, o)
		}
	}
	slices.Sort(m.Options)
	return m
}

func equal(a, b mounter.Mount) bool {
	return a.Kind == b.Kind && a.FSType == b.FSType && a.Source == b.Source && a.ReadOnly == b.ReadOnly &&
		slices.Equal(a.Options, b.Options)
}
