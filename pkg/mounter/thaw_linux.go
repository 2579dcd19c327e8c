package mounter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/regular"
)

// record writes what is about to be frozen to a new file in the state directory, durably, and returns its path.
func (l *linux) record(images []frozen) (path string, err error) {
	data, err := json.Marshal(images)
	if err != nil {
		return "", err
	}
	dir, err := os.Open(l.state)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	file, err := os.CreateTemp(l.state, "*.json")
	if err != nil {
		return "", err
	}
	defer file.Close()
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = dir.Sync()
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// maxRecord is more than the record of a freeze has, in bytes.
const maxRecord = 16 << 20

// patience is how long a filesystem may take to thaw at the start: its disk may not answer, and then neither does it.
const patience = time.Minute

// thawLeft thaws what an earlier process has left frozen, by its records, and removes those. It may die anywhere, and
// the next one does the same. Who froze a filesystem can't be asked: if it was a stranger, since, that ends too.
func (l *linux) thawLeft() error {
	records, err := os.ReadDir(l.state)
	if err != nil {
		return err
	}
	for _, r := range records {
		path := filepath.Join(l.state, r.Name())
		if !r.Type().IsRegular() { // a record is a file: a FIFO would block this start and each later one
			continue
		}
		if err := l.thawRecorded(path); err != nil {
			return fmt.Errorf("thaw what a driver that died has left frozen, by its record %s: pods hang until that is done: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

func (l *linux) thawRecorded(record string) error {
	data, err := regular.ReadFile(record, maxRecord)
	if err != nil {
		return err
	}
	var images []frozen
	if json.Unmarshal(data, &images) != nil {
		return nil // torn: what was to come after it was not begun
	}
	var mounts []*os.File
	defer func() {
		for _, m := range mounts {
			m.Close()
		}
	}()
	for _, image := range images {
		m, err := l.reachFrozen(image)
		if err != nil {
			return fmt.Errorf("%s: %w", image.Path, err)
		}
		if m != nil {
			mounts = append(mounts, m)
		}
	}
	thawed := make(chan []error, 1)
	go func() { thawed <- thawAll(mounts) }()
	select {
	case errs := <-thawed:
		for i, err := range errs {
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return &fs.PathError{Op: "FITHAW", Path: mounts[i].Name(), Err: err}
			}
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("FITHAW has not come back for %s", patience)
	}
}

// reachFrozen opens a mount of what is in an image. If it was unmounted while it was frozen it lives on, and its device
// with it: then it is mounted once more, nowhere. The result is nil if there is nothing to thaw any more.
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
	// What isn't mounted nor frozen must not be mounted here: it may be a pod's device by now.
	if claimed, err := isClaimed(n); err != nil || !claimed {
		return nil, err
	}
	m, err := mountNowhere(loopPath(n), image.FSType)
	if errors.Is(err, unix.EBUSY) {
		m, err = mountNowhere(loopPath(n), image.FSType, "ro")
	}
	if errors.Is(err, unix.EBUSY) { // it is somebody's, but no filesystem
		return nil, nil
	}
	return m, err
}
