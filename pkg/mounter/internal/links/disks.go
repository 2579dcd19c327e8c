package links

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/keylock"
)

// A volume of a virtual or attached disk is mounted at a folder of the driver's own, and the text
// of the links of its mounts is that folder. The name of the folder is a hash of the path of the
// image, or of the serial number of the disk. So the links show which image is in use, also without
// records. The first link attaches, and the removal of the last link releases.

// linkDisks are the disks of a links.
type linkDisks struct {
	diskCalls
	folders string      // clean: the directory with the folders
	formats recordStore // records of formats, and of images, that were begun

	// mu holds a token while no flow runs. A flow is a call that changes disks; it keeps the token
	// until its end, also if its caller has given up.
	mu chan struct{}
	// images are locked by their keys while a Freeze keeps them detached, and by flows that attach
	// them or change their size. An image is locked before mu: no other disk waits for a copy.
	images keylock.Locks[string]

	pendingMu sync.Mutex
	pending   map[string]int // flows of a path, by its key

	// pause waits between two looks at a disk that appears late, and looks is how many there are.
	pause func(ctx context.Context) error
	looks int
}

// newLinkDisks returns the disks of a host, whose calls go through run. The folders are in a
// directory that exists.
func newLinkDisks(host DiskHost, run func(name string, call func() error) error, folders string,
	formats recordStore) *linkDisks {
	d := &linkDisks{diskCalls: diskCalls{host, run}, folders: folders, formats: formats,
		mu: make(chan struct{}, 1), pending: map[string]int{}, pause: pauseLook, looks: 300}
	d.mu <- struct{}{}
	return d
}

func pauseLook(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

// linkOption changes a new links.
type linkOption func(*links)

// withDisks lets a links mount volumes of disks.
func withDisks(d *linkDisks) linkOption { return func(l *links) { l.disks = d } }

// flow runs f while no other flow runs, and returns its error. f ends by itself: if ctx ends
// before, flow returns ErrStalled, and f holds the lock until its end. A flow that has not begun
// when ctx ends does not begin. path is the key of the path that f changes, or "".
func (d *linkDisks) flow(ctx context.Context, path string, f func(ctx context.Context) error) error {
	d.expect(path, 1)
	select {
	case <-d.mu:
	default:
		select {
		case <-d.mu:
		case <-ctx.Done():
			d.expect(path, -1)
			return fmt.Errorf("%w: wait for another call that uses disks: %w", errNotBegun, ctx.Err())
		}
	}
	result := make(chan error, 1)
	go func() {
		err := errNoResult
		defer func() {
			d.expect(path, -1)
			d.mu <- struct{}{}
			result <- err
		}()
		err = guard.Do(func() error { return f(ctx) })
	}()
	return awaitFlow(ctx, result)
}

// aside runs f, which uses no other disk than an image, beside flows. It waits for a Freeze of the
// image, and for flows that attach it. f ends by itself: if ctx ends before, aside returns
// ErrStalled, and f keeps the image locked until its end. image is a key.
func (d *linkDisks) aside(ctx context.Context, image string, f func(ctx context.Context) error) error {
	release, err := d.images.Lock(ctx, image)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		err := errNoResult
		defer func() {
			release()
			result <- err
		}()
		err = guard.Do(func() error { return f(ctx) })
	}()
	return awaitFlow(ctx, result)
}

// awaitFlow returns the result of a flow, or ErrStalled some time after the end of ctx.
func awaitFlow(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	case <-time.After(flowGrace):
		return fmt.Errorf("%w: the call continues: %w", mounter.ErrStalled, ctx.Err())
	}
}

// errNoResult is the error of a flow whose goroutine ended in the middle, as all do when the
// process ends.
var errNoResult = errors.New("the call ended without a result")

// errNotBegun is in the error of a flow that has not begun.
var errNotBegun = errors.New("not begun")

// flowOn is flow for an f that attaches an image, or changes its size. It waits for a Freeze of the
// image. image is a key.
func (d *linkDisks) flowOn(ctx context.Context, path, image string, f func(ctx context.Context) error) error {
	release, err := d.images.Lock(ctx, image)
	if err != nil {
		return err
	}
	err = d.flow(ctx, path, func(ctx context.Context) error {
		defer release()
		return f(ctx)
	})
	if errors.Is(err, errNotBegun) {
		release()
	}
	return err
}

// flowGrace is how long a flow may last after the end of its ctx, so that it returns its own error.
const flowGrace = 100 * time.Millisecond

// expect counts the flows of a path.
func (d *linkDisks) expect(path string, n int) {
	d.pendingMu.Lock()
	defer d.pendingMu.Unlock()
	if d.pending[path] += n; d.pending[path] == 0 {
		delete(d.pending, path)
	}
}

// isExpected reports whether a flow of a path runs or waits.
func (d *linkDisks) isExpected(path string) bool {
	d.pendingMu.Lock()
	defer d.pendingMu.Unlock()
	return d.pending[path] > 0
}

// poll calls look until it returns true. what names the awaited object in the error.
func (d *linkDisks) poll(ctx context.Context, what string, look func() (bool, error)) error {
	for range d.looks {
		if ok, err := look(); ok || err != nil {
			return err
		}
		if err := d.pause(ctx); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
	return fmt.Errorf("%w: there is still no %s", mounter.ErrNoAnswer, what)
}

// folderOf returns the name of the folder of a mount.
func folderOf(kind mounter.Kind, identity string) string {
	sum := sha256.Sum256([]byte(string(kind) + "\x00" + identity))
	return hex.EncodeToString(sum[:16])
}

// isFolder reports whether the text of a link is the folder of a volume.
func (l *links) isFolder(text string) bool {
	if l.disks == nil {
		return false
	}
	names, ok := l.elements(l.disks.folders, text)
	return ok && len(names) == 1
}

// folder returns the folder of a mount of m, and its record without the path. Errors: ErrPath,
// ErrDevice, fs.ErrNotExist.
func (l *links) folder(m mounter.Mount) (linkRecord, error) {
	r := linkRecord{Kind: m.Kind}
	identity := m.Serial
	switch {
	case m.Kind == mounter.BlockDevice && m.Serial == "":
		return r, fmt.Errorf("%w: the storage gives no serial number of the disk", mounter.ErrDevice)
	case m.Kind == mounter.BlockDevice:
		r.Serial = m.Serial
	default:
		image, err := l.imagePath(m.Source)
		if err != nil {
			return r, err
		}
		r.Image, identity = image, l.Key(image)
	}
	r.Source = l.Join(l.disks.folders, folderOf(m.Kind, identity))
	return r, nil
}

// A marking is called before the first change of a disk, and may be called again. It records the
// mount, so that the disk is released if the mount fails, or if the driver dies. A disk that was
// not marked is as another program has it.
type marking func() error

// unmarked is the marking of a disk that has a record of another kind.
func unmarked() error { return nil }

// attach makes the folder of a record show its volume, and is repeatable. It never makes a
// filesystem in an image.
func (l *links) attach(ctx context.Context, m mounter.Mount, r linkRecord, mark marking) error {
	var volume string
	var number uint32
	var err error
	if r.Image != "" {
		volume, number, err = l.disks.attachImage(ctx, r.Image, mark)
	} else {
		volume, number, err = l.disks.attachDisk(ctx, m, mark)
	}
	if err == nil {
		err = mark()
	}
	if err != nil {
		return err
	}
	if err := l.showVolume(volume, r.Source); err != nil {
		return err
	}
	if r.Image == "" || m.ReadOnly {
		return nil
	}
	return l.disks.growProven(volume, number) // GrowImage grew a detached image
}

// showVolume makes a folder show a volume.
func (l *links) showVolume(volume, folder string) error {
	if err := l.host.Mkdir(folder); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	at, _, err := l.disks.volumeAt(folder)
	if err != nil {
		return err
	}
	if at == volume {
		return nil
	}
	if at != "" { // of an image that was at the same path earlier
		if err := l.disks.unmountVolume(folder); err != nil {
			return err
		}
	}
	err = l.disks.mountVolume(volume, folder)
	switch at, _, look := l.disks.volumeAt(folder); { // the library reads an error that is not its own
	case look != nil:
		return errors.Join(err, look)
	case at == volume:
		return nil
	case err == nil:
		return fmt.Errorf("%w: %s shows %q, must show %s", mounter.ErrPath, folder, at, volume)
	}
	return err
}

// release detaches the disk of a record if no link but that at the path of the record leads to its
// folder. An interrupted release is continued by the next one.
func (l *links) release(r linkRecord) error {
	if used, err := l.isLinked(r); used || err != nil {
		return err
	}
	number, found, err := l.disks.numberOf(r)
	if err != nil {
		return err
	}
	volume, present, err := l.disks.volumeAt(r.Source)
	if errors.Is(err, fs.ErrNotExist) {
		volume, present, err = "", false, nil
	}
	if err != nil {
		return err
	}
	if present { // before anything is taken away
		disk, err := l.disks.diskOf(volume)
		if err != nil {
			return err
		}
		if found && disk != number {
			return fmt.Errorf("%w: %s shows %s of disk %d, must be of disk %d", mounter.ErrDevice, r.Source, volume,
				disk,
				number)
		}
		if r.adopted {
			number, found = disk, true
		}
		if err := l.disks.flush(volume); err != nil {
			return err
		}
	}
	if volume != "" {
		if err := l.disks.unmountVolume(r.Source); err != nil {
			return err
		}
	}
	used, err := l.isShown(r, volume)
	if err != nil {
		return err
	}
	if found && !used {
		if err := l.disks.setOnline(number, false); err != nil {
			return err
		}
	}
	if r.Image != "" && !used {
		if err := l.disks.detachIfAttached(r.Image); err != nil {
			return err
		}
	}
	if err := l.host.Rmdir(r.Source); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isLinked reports whether a link other than that at the path of r leads to the folder of r.
func (l *links) isLinked(r linkRecord) (bool, error) {
	for _, other := range l.records.withSource(r.Source) {
		if l.Key(other.Path) == l.Key(r.Path) {
			continue
		}
		e, err := l.host.Entry(other.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("%w: %w", mounter.ErrBusy, err)
		}
		if e.Kind == DirLink && l.Key(e.Text) == l.Key(r.Source) {
			return true, nil
		}
	}
	return false, nil
}

// isShown reports whether another folder than that of r shows a volume: a disk has several serial
// numbers, such as that of page 83, and so can have several folders.
func (l *links) isShown(r linkRecord, volume string) (bool, error) {
	if volume == "" {
		return false, nil
	}
	for _, other := range l.records.all() {
		if !l.isFolder(other.Source) || l.Key(other.Source) == l.Key(r.Source) {
			continue
		}
		at, _, err := l.disks.volumeAt(other.Source)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("%w: %w", mounter.ErrBusy, err)
		}
		if err == nil && at == volume {
			return true, nil
		}
	}
	return false, nil
}

// goneLooks is how many looks show that a disk of a storage system is not attached any more.
const goneLooks = 10

// numberOf returns the number of the disk of a record: that in the physical path of its own image,
// or that of the disk with its serial number. A disk that is not attached is not found; nor is that
// of a record that was lost, whose disk stays attached.
func (d *linkDisks) numberOf(r linkRecord) (number uint32, found bool, err error) {
	if r.Serial != "" {
		// After a reboot the disk may appear late, and be online then. A disk that was detached
		// never appears.
		for look := range min(d.looks, goneLooks) {
			disk, err := d.findDisk(r.Serial)
			if !errors.Is(err, fs.ErrNotExist) {
				return disk.Number, err == nil, err
			}
			if look > 0 {
				if err := d.pause(context.Background()); err != nil {
					return 0, false, err
				}
			}
		}
		return 0, false, nil
	}
	if r.Image == "" {
		return 0, false, nil
	}
	info, err := d.vhdx(r.Image)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	return info.Number, info.Attached && info.HasNumber, err
}

// prove returns ErrDevice unless a volume is on the disk with a number, which is that in the
// physical path of its own image, or that of its own serial number.
func (d *linkDisks) prove(volume string, number uint32) error {
	disk, err := d.diskOf(volume)
	if err == nil && disk != number {
		err = fmt.Errorf("%w: %s is on disk %d, must be on disk %d", mounter.ErrDevice, volume, disk, number)
	}
	return err
}

// online brings a disk online, and waits for its volume. Errors: ErrFormat if it has several.
func (d *linkDisks) online(ctx context.Context, number uint32, mark marking) (volume string, err error) {
	on, err := d.isOnline(number)
	if err == nil && !on {
		if err = mark(); err == nil {
			err = d.setOnline(number, true)
		}
	}
	if err != nil {
		return "", err
	}
	err = d.poll(ctx, "volume", func() (bool, error) {
		all, err := d.volumes(number)
		if err == nil && len(all) > 1 {
			err = fmt.Errorf("%w: it has %d volumes: %s", mounter.ErrFormat, len(all), strings.Join(all, ", "))
		}
		if err != nil || len(all) == 0 {
			return false, err
		}
		volume = all[0]
		return true, nil
	})
	if err != nil {
		return "", err
	}
	return volume, d.prove(volume, number)
}

// growProven grows a volume after the proof that it is on its disk, and reads its size again: the
// library does not grow by less than 100 MiB, without an error.
func (d *linkDisks) growProven(volume string, number uint32) error {
	if err := d.prove(volume, number); err != nil {
		return err
	}
	want, err := d.growVolume(volume)
	if err != nil {
		return err
	}
	size, err := d.volumeSize(volume)
	if err == nil && size < want-VolumeSlack {
		err = fmt.Errorf("%w: %s has %d bytes after growth, its partition has %d", mounter.ErrDevice, volume, size,
			want)
	}
	return err
}

// VolumeSlack is how much smaller than its partition a filesystem may be, in bytes: one of the
// largest clusters of NTFS, and a sector.
const VolumeSlack = 2<<20 + 4096

// growDisk is Grow for a mount of a disk.
func (l *links) growDisk(ctx context.Context, m mounter.Mount, path string) error {
	want, err := l.folder(m)
	if err != nil {
		return err
	}
	return l.disks.flow(ctx, l.Key(path), func(ctx context.Context) error {
		at, err := l.stateAt(path)
		switch {
		case err != nil:
			return err
		case at.state != mounted || l.Key(at.record.Source) != l.Key(want.Source):
			return fmt.Errorf("%w: %s is not mounted there", mounter.ErrPath, path)
		case at.record.ReadOnly || isReadOnlyMount(m):
			return fmt.Errorf("%w: %s", mounter.ErrReadOnly, path)
		}
		if err := l.disks.rescan(); err != nil {
			return err
		}
		if m.Kind == mounter.BlockDevice {
			disk, err := l.disks.awaitDisk(ctx, m.Serial)
			if err == nil && disk.Size < m.Size {
				err = mounter.TooSmall(m, disk.Size)
			}
			if err != nil {
				return err
			}
		}
		number, found, err := l.disks.numberOf(want)
		if err == nil && !found {
			err = fmt.Errorf("%w: the disk of %s is not attached", mounter.ErrDevice, path)
		}
		if err != nil {
			return err
		}
		volume, _, err := l.disks.volumeAt(want.Source)
		if err != nil {
			return err
		}
		return l.disks.growProven(volume, number)
	})
}

// exclusively calls f, as a flow if f changes a disk: if onDisk, or if something at the path leads
// to a folder, or if another flow of the path is expected.
func (l *links) exclusively(ctx context.Context, path string, onDisk bool, f func(context.Context) error) error {
	if l.disks == nil {
		return f(ctx)
	}
	if !onDisk && !l.disks.isExpected(l.Key(path)) {
		r, _ := l.records.get(path)
		e, err := l.host.Entry(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !l.isFolder(r.Source) && !l.isFolder(e.Text) {
			return f(ctx)
		}
	}
	return l.disks.flow(ctx, l.Key(path), f)
}

// mountDisk mounts the volume of a disk at the path of a record. The record comes before the first
// change: it shows Unmount what to release if the driver dies. After an error a disk that was
// changed is released, and the path is as it was, but for a dead link.
func (l *links) mountDisk(ctx context.Context, m mounter.Mount, record linkRecord, at pathState) error {
	m.ReadOnly = record.ReadOnly
	if at.state == directory { // before the disk is touched
		if names, err := l.host.Names(record.Path); err != nil || len(names) > 0 {
			return errors.Join(err, fmt.Errorf("%w: %s", mounter.ErrNotEmpty, record.Path))
		}
	}
	marked := at.record != nil && l.Key(at.record.Source) == l.Key(record.Source) // by an interrupted call
	err := l.attach(ctx, m, record, sync.OnceValue(func() error {
		marked = true
		return l.records.put(record)
	}))
	if err == nil {
		if at, err = l.stateAt(record.Path); err == nil && at.state == mounted { // a dead link has come to life
			return nil
		}
	}
	if err == nil {
		if err = l.makeLink(ctx, record, at); err == nil {
			return nil
		}
	}
	if !marked {
		return err
	}
	if released := l.release(record); released != nil {
		return errors.Join(err, released, l.records.put(record)) // which stays, so that Unmount releases the disk
	}
	return errors.Join(err, l.records.remove(record.Path))
}

// releaseOther releases the disk of an old record for a path, of an interrupted call or a dead
// link, unless the new record has the same disk.
func (l *links) releaseOther(old *linkRecord, record linkRecord) error {
	if old == nil || !l.isFolder(old.Source) || l.Key(old.Source) == l.Key(record.Source) {
		return nil
	}
	return l.release(*old)
}

// textOf returns the text of the links of a mount.
func (l *links) textOf(m mounter.Mount) (string, error) {
	if l.disks != nil && (m.Kind == mounter.Image || m.Kind == mounter.BlockDevice) {
		r, err := l.folder(m)
		return r.Source, err
	}
	source, _, err := l.sourceOf(m)
	return source, err
}

// stateOfFolder returns the state of a link to a folder: dead if its volume is gone, as after a
// reboot.
func (l *links) stateOfFolder(folder string) (linkState, error) {
	switch volume, present, err := l.disks.volumeAt(folder); {
	case errors.Is(err, fs.ErrNotExist):
		return dead, nil
	case err != nil:
		return dead, err
	case volume == "" || !present:
		return dead, nil
	}
	return mounted, nil
}

// idleTime is how long MountPointsOf waits for the release of an image.
const idleTime = 30 * time.Second

// attachedAs returns the disk of an image that is attached, and to which no link leads. An image
// whose disk is offline has no users: a release detaches it that was interrupted, or whose record
// was lost.
func (l *links) attachedAs(source string) ([]string, error) {
	if l.disks == nil || !strings.HasSuffix(l.Key(source), ImageExt) {
		return nil, nil
	}
	if e, err := l.host.Entry(source); err != nil || e.Kind != PlainFile {
		return nil, nil
	}
	look := func() (VHDXInfo, error) {
		info, err := l.disks.vhdx(source)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, mounter.ErrFormat) {
			return VHDXInfo{}, nil
		}
		return info, err
	}
	info, err := look()
	if err != nil || !info.Attached {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), idleTime)
	defer cancel()
	err = l.disks.flowOn(ctx, "", l.Key(source), func(context.Context) error { return l.disks.detachIdle(source) })
	if err == nil {
		info, err = look()
	}
	if err != nil || !info.Attached {
		return nil, err
	}
	return []string{fmt.Sprintf(`\\.\PhysicalDrive%d`, info.Number)}, nil
}

// detachIdle detaches an image whose disk is offline.
func (d *linkDisks) detachIdle(image string) error {
	info, err := d.vhdx(image)
	if err != nil || !info.Attached || !info.HasNumber {
		return err
	}
	if online, err := d.isOnline(info.Number); err != nil || online {
		return err
	}
	return d.detachVHDX(image)
}
