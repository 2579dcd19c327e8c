package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

const (
	// unfinished is the prefix of a record that is being written.
	unfinished = ".new-"
	// maxRecord bounds the size of a record that is read, in bytes.
	maxRecord = 1 << 20
	// startPatience is the time that New waits for the first attempts to thaw.
	startPatience = 3 * time.Second
	// lockPatience is the time that the helper of a driver that has just died has to thaw.
	lockPatience = time.Second
	// thawInterval is the time between attempts to thaw by a record.
	thawInterval = time.Second
)

// writeRecord durably writes the list of the images that the caller will freeze to a new record in
// the state directory, and returns the open file and its path. The file is locked, flock(2), for as
// long as a process has the file open. A later driver sees by the lock that a helper of this driver
// can still freeze.
func (z *Freezer) writeRecord(images []frozen) (file *os.File, path string, err error) {
	data, err := json.Marshal(images)
	if err != nil {
		return nil, "", err
	}
	dir, err := beneath.Open(z.state)
	if err != nil {
		return nil, "", err
	}
	defer dir.Close()
	name := atomicfile.Random() + ".json"
	path = filepath.Join(z.state, name)
	// The file is locked before a later driver can see it.
	w := atomicfile.Writer{Dir: dir, Temp: unfinished + name, Opened: func(f *os.File) error {
		return unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}}
	if file, err = w.Keep(name, data); err != nil {
		if left := os.Remove(path); left != nil && !errors.Is(left, fs.ErrNotExist) {
			err = errors.Join(err, left)
		}
		return nil, "", err
	}
	return file, path, nil
}

// thawRecords reads the records of an earlier process, thaws the filesystems that the process has
// left frozen, and removes the records. If a thaw does not succeed soon, thawRecords retries it in
// the background, and Failing reports the filesystem. thawRecords also thaws a filesystem that
// another program has frozen since: the kernel does not report which program froze a filesystem.
func (z *Freezer) thawRecords() error {
	records, err := os.ReadDir(z.state)
	if err != nil {
		return err
	}
	soon := time.After(startPatience)
	tried := make(chan struct{}, len(records))
	for _, r := range records {
		path := filepath.Join(z.state, r.Name())
		if r.IsDir() { // holds records of another kind
			tried <- struct{}{}
			continue
		}
		if strings.HasPrefix(r.Name(), unfinished) {
			removeIncomplete(path)
			tried <- struct{}{}
			continue
		}
		go guard.Do(func() error { z.thawUntilDone(path, func() { tried <- struct{}{} }); return nil })
	}
	for range records {
		select {
		case <-tried:
		case <-soon:
			return nil
		}
	}
	return nil
}

// thawUntilDone thaws the filesystems of a record until none of them is frozen, and removes the
// record. If tried is not nil, thawUntilDone calls it after the first attempt.
func (z *Freezer) thawUntilDone(record string, tried func()) {
	var done []func()
	for {
		images, err := z.thawRecorded(record)
		if err == nil {
			os.Remove(record) // a record that stays does no harm
			for _, d := range done {
				d()
			}
		} else if done == nil {
			for _, image := range images {
				done = append(done, z.tools.Stalls.Add(image.Path, image.backing(), "",
					fmt.Sprintf("the filesystem may be frozen, by record %s: %v", record, err)))
			}
		}
		if tried != nil {
			tried()
			tried = nil
		}
		if err == nil || errors.Is(err, errNoRecord) {
			return
		}
		if s := (*tool.Stuck)(nil); errors.As(err, &s) {
			<-s.Gone // another helper would stall, too
		}
		time.Sleep(thawInterval)
	}
}

// thawRecorded thaws the filesystems of a record, and returns their images, also with an error.
func (z *Freezer) thawRecorded(record string) (images []frozen, err error) {
	file, data, err := readRecord(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if json.Unmarshal(data, &images) != nil {
		return nil, nil // torn by a power cut, so the freeze had not begun
	}
	if err := tryLock(file); err != nil {
		return images, err
	}
	var mounts []*os.File
	defer func() { tool.CloseFiles(mounts) }()
	for _, image := range images {
		m, err := z.reachFrozen(image)
		if err != nil {
			return images, fmt.Errorf("%s: %w", image.Path, err)
		}
		if m != nil {
			mounts = append(mounts, m)
		}
	}
	if len(mounts) == 0 {
		return images, nil
	}
	return images, z.tools.Help(context.Background(), thawLimit, thawTask, nil,
		tool.Disk{Image: images[0].backing(), Path: images[0].Path}, mounts...)
}

// errNoRecord is the error for an entry of the state directory that the Host did not write. Such an
// entry stays as it is.
var errNoRecord = errors.New("not a record")

// readRecord opens and reads a record. Errors: errNoRecord if path is not a regular file, or is
// larger than maxRecord.
func readRecord(path string) (*os.File, []byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a link, a socket
		err = fmt.Errorf("%w: %w", errNoRecord, err)
	}
	if err != nil {
		return nil, nil, err
	}
	data, err := regular.Read(file, maxRecord)
	if errors.Is(err, regular.ErrType) || errors.Is(err, regular.ErrSize) {
		err = fmt.Errorf("%w: %w", errNoRecord, err)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, data, nil
}

// tryLock takes the lock of a record. tryLock fails if another process holds the lock for longer
// than lockPatience: a helper that can still freeze.
func tryLock(record *os.File) error {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		err := unix.Flock(int(record.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Since(start) > lockPatience {
			return errors.New("a helper process of an earlier driver is stalled in FIFREEZE," +
				" which waits for a write that does not end")
		}
	}
}

// removeIncomplete removes a record that an earlier driver did not complete. A locked record stays,
// as another process is writing the record.
func removeIncomplete(path string) {
	file, _, err := readRecord(path)
	if err != nil {
		return
	}
	defer file.Close()
	if tryLock(file) == nil {
		os.Remove(path)
	}
}

// reachFrozen opens a mount of the filesystem in an image. A filesystem that was unmounted while
// frozen lives on, and so does its device. Then reachFrozen mounts the filesystem once more, at no
// path. reachFrozen returns nil if nothing is left to thaw.
func (z *Freezer) reachFrozen(image frozen) (*os.File, error) {
	n := image.Loop
	if has, err := loop.FileOfDevice(n); err != nil || has != image.backing() {
		var ok bool
		if n, ok, err = z.loops.DeviceFor(image.backing()); err != nil || !ok {
			return nil, err
		}
	}
	mounts, _, err := loop.MountsOf(n)
	if err != nil {
		return nil, err
	}
	if len(mounts) > 0 {
		if m, err := openMount(mounts); err == nil {
			return m, nil
		}
	}
	// A device without a frozen filesystem must not be mounted here: a pod may use it by now.
	if claimed, err := loop.IsClaimed(n); err != nil || !claimed {
		return nil, err
	}
	m, err := tree.MountDetached(loop.Path(n), image.FSType)
	if errors.Is(err, unix.EBUSY) {
		m, err = tree.MountDetached(loop.Path(n), image.FSType, "ro")
	}
	if errors.Is(err, unix.EBUSY) { // another program has claimed the device, and no filesystem is mounted from it
		return nil, nil
	}
	return m, err
}
