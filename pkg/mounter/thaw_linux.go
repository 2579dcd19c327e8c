package mounter

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
)

const (
	// unfinished is the prefix of a record that is being written.
	unfinished = ".new-"
	// maxRecord bounds the size of a record that is read, in bytes.
	maxRecord = 1 << 20
	// startPatience is the time for which New waits until filesystems are thawed.
	startPatience = 3 * time.Second
	// lockPatience is the time that the helper of a driver which has just died has to thaw.
	lockPatience = time.Second
	// againThaw is the time between attempts to thaw by a record.
	againThaw = time.Second
)

// writeRecord writes what is about to be frozen to a new file in the state directory, durably, and
// returns the file and its path. The file is locked, flock(2), for as long as a process has it
// open: by that lock a later driver knows that a helper of this one can still freeze.
func (l *linux) writeRecord(images []frozen) (file *os.File, path string, err error) {
	data, err := json.Marshal(images)
	if err != nil {
		return nil, "", err
	}
	dir, err := beneath.Open(l.state)
	if err != nil {
		return nil, "", err
	}
	defer dir.Close()
	name := atomicfile.Random() + ".json"
	path = filepath.Join(l.state, name)
	w := atomicfile.Writer{Dir: dir, Temp: unfinished + name, Opened: func(f *os.File) error { // before a later driver can see it
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

// thawLeft thaws what an earlier process has left frozen, by its records, and removes these. What
// cannot be thawed soon is retried in the background, and Failing reports it. A filesystem that
// another program has frozen since is thawed too: the kernel does not tell who froze it.
func (l *linux) thawLeft() error {
	records, err := os.ReadDir(l.state)
	if err != nil {
		return err
	}
	soon := time.After(startPatience)
	tried := make(chan struct{}, len(records))
	for _, r := range records {
		path := filepath.Join(l.state, r.Name())
		if r.IsDir() { // of records of other things
			tried <- struct{}{}
			continue
		}
		if strings.HasPrefix(r.Name(), unfinished) {
			removeUnfinished(path)
			tried <- struct{}{}
			continue
		}
		go guard.Do(func() error { l.thawUntilDone(path, func() { tried <- struct{}{} }); return nil })
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

// thawUntilDone thaws by a record until nothing of it is frozen, and removes the record. It calls
// tried, if that is not nil, after the first attempt.
func (l *linux) thawUntilDone(record string, tried func()) {
	var done []func()
	for {
		images, err := l.thawRecorded(record)
		if err == nil {
			os.Remove(record) // a record that stays does no harm
			for _, d := range done {
				d()
			}
		} else if done == nil {
			for _, image := range images {
				done = append(done, l.stalls.add(image.Path, image.backing(), "", fmt.Sprintf("it may be frozen, by record %s: %v", record, err)))
			}
		}
		if tried != nil {
			tried()
			tried = nil
		}
		if err == nil || errors.Is(err, errNoRecord) {
			return
		}
		if s := (*stuck)(nil); errors.As(err, &s) {
			<-s.gone // another helper would hang, too
		}
		time.Sleep(againThaw)
	}
}

// thawRecorded thaws the filesystems of a record, and returns their images also after an error.
func (l *linux) thawRecorded(record string) (images []frozen, err error) {
	file, data, err := readRecord(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if json.Unmarshal(data, &images) != nil {
		return nil, nil // torn by a power cut, so the freeze was not begun
	}
	if err := tryLock(file); err != nil {
		return images, err
	}
	var mounts []*os.File
	defer func() { closeFiles(mounts) }()
	for _, image := range images {
		m, err := l.reachFrozen(image)
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
	return images, l.help(context.Background(), thawLimit, thawTask, nil, disk{image: images[0].backing(), path: images[0].Path}, mounts...)
}

// errNoRecord says that the state directory holds something that New did not write. It is left
// alone.
var errNoRecord = errors.New("not a record")

// readRecord opens and reads a record. Errors: errNoRecord if it is not a file of a record's size.
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

// tryLock takes the lock of a record. It fails while a helper that has it can still freeze.
func tryLock(record *os.File) error {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		err := unix.Flock(int(record.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Since(start) > lockPatience {
			return errors.New("a helper process of an earlier driver hangs in FIFREEZE, which waits for a write that does not end")
		}
	}
}

// removeUnfinished removes a record that an earlier driver did not complete. One that is locked is
// being written.
func removeUnfinished(path string) {
	file, _, err := readRecord(path)
	if err != nil {
		return
	}
	defer file.Close()
	if tryLock(file) == nil {
		os.Remove(path)
	}
}

// reachFrozen opens a mount of the filesystem in an image. A filesystem that was unmounted while it
// was frozen lives on, and its device with it: then it is mounted once more, at no path. The
// result is nil if nothing is left to thaw.
func (l *linux) reachFrozen(image frozen) (*os.File, error) {
	n := image.Loop
	if has, err := fileOfLoop(n); err != nil || has != image.backing() {
		var ok bool
		if n, ok, err = l.loops.of(image.backing()); err != nil || !ok {
			return nil, err
		}
	}
	mounts, _, err := mountsOf(n)
	if err != nil {
		return nil, err
	}
	if len(mounts) > 0 {
		if m, err := openMount(mounts); err == nil {
			return m, nil
		}
	}
	// A device without a frozen filesystem must not be mounted here: it may be a pod's by now.
	if claimed, err := isClaimed(n); err != nil || !claimed {
		return nil, err
	}
	m, err := mountNowhere(loopPath(n), image.FSType)
	if errors.Is(err, unix.EBUSY) {
		m, err = mountNowhere(loopPath(n), image.FSType, "ro")
	}
	if errors.Is(err, unix.EBUSY) { // another program has the device, and no filesystem on it
		return nil, nil
	}
	return m, err
}
