package disk

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/regular"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

// A driver that dies while mkfs runs leaves a device that is neither blank nor a filesystem. Such a
// device may be formatted again only if it was certainly never used. So a record is written before
// mkfs starts. The record has the serial number of the device, which the backend provides, and the
// UUID of the new filesystem. The record is removed, durably, before the first mount of that
// filesystem. If the volume moves to another node meanwhile, the record stays behind; then the
// UUID, and the filesystem's own mark of its first use, show that the record no longer counts: see
// content.fresh.

const (
	// unfinished is the prefix of a record that is being written.
	unfinished = ".new-"
	// maxRecord bounds the size of a record that is read, in bytes.
	maxRecord = 1 << 20
)

// formatsDir is the directory of these records, in the state directory of the mounter.
const formatsDir = "formats"

// formatting is such a record.
type formatting struct {
	Serial string `json:"serial"`
	FSType string `json:"fsType"`
	UUID   string `json:"uuid"` // 32 hexadecimal digits
	Size   int64  `json:"size"` // of the device, in bytes
}

// unfinished reports whether the content of the device comes from the format of record r, and that
// format has not ended. A device that is smaller than that of the record is another device. Data
// of an unknown format come from it unless a copy of a superblock shows that the device had another
// filesystem, or that this filesystem was used: the volume was on another node since.
func (f deviceContent) unfinished(r *formatting) bool {
	if r == nil || f.size < r.Size {
		return false
	}
	if f.Name == signature.Unknown {
		return !slices.ContainsFunc(f.Copies, func(c signature.Superblock) bool { return c.ID != r.UUID || !c.Fresh })
	}
	own := f.Fresh && f.ID == r.UUID
	return own && (f.Name == r.FSType || f.Name == signature.Unfinished && r.FSType == tree.Btrfs)
}

// uuid returns the UUID as mkfs takes it.
func (f *formatting) uuid() string {
	return signature.UUIDText(f.UUID)
}

// newFormatting returns the record of a format that begins now.
func newFormatting(m mounter.Mount, size int64) *formatting {
	id := make([]byte, 16)
	rand.Read(id)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4: RFC 9562
	return &formatting{Serial: m.Serial, FSType: m.FSType, UUID: hex.EncodeToString(id), Size: size}
}

// formatPath returns the path of the record for the device with a serial number.
func (ds *Disks) formatPath(serial string) string {
	sum := sha256.Sum256([]byte(serial))
	return filepath.Join(ds.state, formatsDir, hex.EncodeToString(sum[:])+".json")
}

// readFormatting returns the record of a device, or nil.
func (ds *Disks) readFormatting(serial string) (*formatting, error) {
	path := ds.formatPath(serial)
	data, err := regular.ReadFile(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var f formatting
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err == nil && (f.Serial != serial || len(f.UUID) != 32) {
		err = errors.New("it is of another device, or damaged")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the record of its format, %s: %w", mounter.ErrDevice, path, err)
	}
	return &f, nil
}

// writeFormatting writes a record durably.
func (ds *Disks) writeFormatting(f *formatting) error {
	path := ds.formatPath(f.Serial)
	parent := filepath.Dir(path)
	switch err := os.Mkdir(parent, 0o700); {
	case err == nil:
		if err := persistDir(filepath.Dir(parent)); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	dir, err := beneath.Open(parent)
	if err != nil {
		return err
	}
	defer dir.Close()
	w := atomicfile.Writer{Dir: dir, Temp: unfinished + atomicfile.Random()}
	return w.Write(filepath.Base(path), data)
}

// forgetFormat removes the record of a format that failed if the device is still blank. On a blank
// device the next format needs no record, and a record that stays behind could name a device that
// is used elsewhere since. failed is the error of the format.
func (ds *Disks) forgetFormat(ctx context.Context, m mounter.Mount, src tree.Source, failed error) error {
	if errors.Is(failed, mounter.ErrStalled) { // mkfs may write later
		return nil
	}
	a, err := ds.looks.Start(src.Device, func() (deviceContent, error) { return readDevice(src.Device) })
	if err != nil {
		return nil
	}
	found, err := waitFor(context.WithoutCancel(ctx), a, inflight.AnswerTime)
	if err != nil || !found.Blank { // by the record it was not used
		return nil
	}
	return ds.removeFormatting(m.Serial)
}

// removeFormatting removes the record of a device durably. No record is no error.
func (ds *Disks) removeFormatting(serial string) error {
	path := ds.formatPath(serial)
	switch err := os.Remove(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return persistDir(filepath.Dir(path))
}

// wipe writes zeroes to the ranges that are read before a device is formatted: the remains of an
// interrupted format must not be taken for a filesystem.
func wipe(dev *os.File, size int64) error {
	file, err := os.OpenFile(tree.ProcPath(int(dev.Fd())), os.O_WRONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, r := range signature.Regions(size) {
		if _, err := file.WriteAt(make([]byte, r.Length), r.Offset); err != nil {
			return err
		}
	}
	return file.Sync()
}

// persistDir makes the names in a directory durable.
func persistDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
