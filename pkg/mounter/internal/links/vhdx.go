package links

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// ImageExt is the extension of images: the system knows the format by it.
const ImageExt = ".vhdx"

// imagePath returns the clean path of an image that exists. Errors: ErrPath, fs.ErrNotExist,
// ErrFormat for a directory.
func (l *links) imagePath(path string) (string, error) {
	clean, err := l.Clean(path)
	if err != nil {
		return "", fmt.Errorf("image: %w", err)
	}
	kind, err := l.noLinks(clean)
	if err != nil {
		return "", err
	}
	if kind != PlainFile || !strings.HasSuffix(l.Key(clean), ImageExt) {
		return "", fmt.Errorf("%w: %s must be a file whose name ends in %s", mounter.ErrFormat, clean, ImageExt)
	}
	return clean, nil
}

// attachImage attaches an image that may be attached already. It returns the volume of the image,
// which has a filesystem and is proven to be on the disk of the image. Errors: ErrFormat for
// another content: an image is never formatted again.
func (d *linkDisks) attachImage(ctx context.Context, image string, mark marking) (volume string, number uint32,
	err error) {
	if volume, number, err = d.onlineImage(ctx, image, mark); err != nil {
		return "", 0, err
	}
	switch found, err := d.filesystem(volume); {
	case err != nil:
		return "", 0, err
	case found != options.NTFS:
		return "", 0, fmt.Errorf("%w: the volume in %s has the filesystem %q, must have %s: it is not formatted, as "+
			"the data may be needed", mounter.ErrFormat, image, found, options.NTFS)
	}
	return volume, number, nil
}

// onlineImage attaches an image with a partition, and returns its volume.
func (d *linkDisks) onlineImage(ctx context.Context, image string, mark marking) (volume string, number uint32,
	err error) {
	if number, err = d.attachNumber(ctx, image, mark); err != nil {
		return "", 0, err
	}
	if volume, err = d.online(ctx, number, mark); err != nil {
		return "", 0, fmt.Errorf("%s: %w", image, err)
	}
	return volume, number, nil
}

// attachNumber attaches an image, and returns the number of its disk.
func (d *linkDisks) attachNumber(ctx context.Context, image string, mark marking) (number uint32, err error) {
	info, err := d.vhdx(image)
	if err == nil && !info.Attached {
		if err = mark(); err == nil {
			err = d.attachVHDX(image)
		}
	}
	if err != nil {
		return 0, err
	}
	err = d.poll(ctx, "disk of "+image, func() (bool, error) {
		info, err := d.vhdx(image)
		number = info.Number
		return info.Attached && info.HasNumber, err
	})
	if err == nil {
		err = d.rescan()
	}
	return number, err
}

// detachIfAttached detaches an image. A missing image is no error.
func (d *linkDisks) detachIfAttached(image string) error {
	info, err := d.vhdx(image)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Attached:
		return nil
	}
	return d.detachVHDX(image)
}

// ImageExt is that of virtual disks.
func (Host) ImageExt() string { return ImageExt }

// IsFilesystem returns errors.ErrUnsupported: drives have letters here.
func (Host) IsFilesystem(string) (bool, error) { return false, errors.ErrUnsupported }

// MakeImage makes a virtual disk with an NTFS: the only place where an image is formatted.
func (h Host) MakeImage(ctx context.Context, path string, size int64, fsType string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !h.hasDisks() {
		return errNoImages
	}
	path, err := h.Clean(path)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := h.isFree(path); err != nil {
		return err
	}
	switch {
	case fsType == "":
		return fmt.Errorf("%w: raw block volumes on Windows", errors.ErrUnsupported)
	case fsType != options.NTFS:
		return errors.Join(mounter.CheckFSType(fsType), fmt.Errorf("%w: the filesystem %.32q on Windows",
			errors.ErrUnsupported,
			fsType))
	case !strings.HasSuffix(h.Key(path), ImageExt):
		return fmt.Errorf("%w: the name of an image must end in %s: %s", mounter.ErrPath, ImageExt, path)
	}
	return h.disks.aside(ctx, h.Key(path), func(ctx context.Context) error {
		if err := h.isFree(path); err != nil { // another call was first
			return err
		}
		return h.disks.makeImage(ctx, path, size)
	})
}

// isFree returns an error unless an image can be made at a path: it does not exist, and its
// directory does. Errors: fs.ErrExist.
func (h Host) isFree(path string) error {
	switch _, err := h.noLinks(path); {
	case err == nil:
		return fmt.Errorf("image %s: %w", path, fs.ErrExist)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := h.noLinks(h.dir(path)); err != nil {
		return fmt.Errorf("directory of the image: %w", err)
	}
	return nil
}

// vhdxUnit divides the size of a virtual disk, in bytes.
const vhdxUnit = 512

// makeImage makes an image, or leaves no file. There is no file before, and the image is locked.
// Windows fills the file with zeros, so this part keeps no other flow waiting.
func (d *linkDisks) makeImage(ctx context.Context, image string, size int64) error {
	if err := d.recordMaking(image); err != nil {
		return err
	}
	err := d.createVHDX(image, (size+vhdxUnit-1)/vhdxUnit*vhdxUnit)
	if errors.Is(err, fs.ErrExist) { // of another program
		return errors.Join(err, d.forgetMaking(image))
	}
	if err == nil {
		err = ctx.Err()
	}
	whole := context.WithoutCancel(ctx) // a flow that began ends by itself
	if err == nil {
		err = d.flow(whole, "", func(ctx context.Context) error {
			return errors.Join(d.formatNew(ctx, image), d.detachImage(image))
		})
	}
	if err == nil {
		if err = d.forgetMaking(image); err == nil {
			return nil
		}
	}
	err = fmt.Errorf("make image %s: %w", image, err)
	if errors.Is(err, errNoResult) { // the next start detaches the image
		return err
	}
	return errors.Join(err, d.discard(whole, image))
}

// discard detaches and removes an image whose making failed.
func (d *linkDisks) discard(ctx context.Context, image string) error {
	return d.flow(ctx, "", func(context.Context) error {
		err := d.detachImage(image)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if removed := d.removeVHDX(image); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			return errors.Join(err, removed) // the record stays: the next start detaches the image
		}
		return errors.Join(err, d.forgetMaking(image))
	})
}

// making is the record of an image that is being made. If the driver dies meanwhile, the image
// stays attached, and Windows removes no file that is attached.
type making struct {
	Image string `json:"image"`
}

// makingPrefix is before the names of these records.
const makingPrefix = "make-"

func makingName(image string) string { return makingPrefix + recordName(image) }

func (d *linkDisks) recordMaking(image string) error {
	data, err := json.Marshal(making{image})
	if err == nil {
		err = d.formats.write(makingName(image), data)
	}
	if err != nil {
		return fmt.Errorf("record that %s is being made: %w", image, err)
	}
	return nil
}

func (d *linkDisks) forgetMaking(image string) error {
	if err := d.formats.remove(makingName(image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of an image: %w", err)
	}
	return nil
}

// detachUnfinished detaches images whose making was interrupted. Nothing was written to them but
// their filesystem. The record of an image that cannot be detached now stays for the next start.
func (d *linkDisks) detachUnfinished() error {
	files, err := d.formats.read()
	if err != nil {
		return fmt.Errorf("read the records of formats: %w", err)
	}
	for name, data := range files {
		var m making
		if !strings.HasPrefix(name, makingPrefix) || json.Unmarshal(data, &m) != nil || makingName(m.Image) != name {
			continue
		}
		if d.detachImage(m.Image) == nil {
			if err := d.forgetMaking(m.Image); err != nil {
				return err
			}
		}
	}
	return nil
}

// formatNew makes the partition and the filesystem of an image that CreateVHDX has just made.
func (d *linkDisks) formatNew(ctx context.Context, image string) error {
	number, err := d.attachNumber(ctx, image, unmarked)
	if err != nil {
		return err
	}
	if err := d.setOnline(number, true); err != nil {
		return err
	}
	if err := d.partition(number); err != nil {
		return err
	}
	volume, err := d.online(ctx, number, unmarked) // again: the partition is new
	if err != nil {
		return err
	}
	info, err := d.vhdx(image)
	if err != nil {
		return err
	}
	if !info.Attached || !info.HasNumber || info.Number != number {
		return fmt.Errorf("%w: the disk of the image changed its number", mounter.ErrDevice)
	}
	return d.makeFilesystem(volume, number)
}

// makeFilesystem formats a volume that must be new, on the disk with a number, and makes the
// filesystem durable.
func (d *linkDisks) makeFilesystem(volume string, number uint32) error {
	found, err := d.filesystem(volume)
	if err == nil && found != "" {
		err = fmt.Errorf("%w: the new volume %s has the filesystem %s", mounter.ErrDevice, volume, found)
	}
	if err == nil {
		err = d.prove(volume, number)
	}
	if err != nil {
		return err
	}
	if err := d.format(volume); err != nil {
		return err
	}
	found, err = d.filesystem(volume)
	if err == nil && found != options.NTFS {
		err = fmt.Errorf("%w: after the format of %s, its filesystem is %q", mounter.ErrFormat, volume, found)
	}
	if err != nil {
		return err
	}
	return d.finishFilesystem(volume)
}

// finishFilesystem gives a new filesystem its access control list, and makes it durable.
func (d *linkDisks) finishFilesystem(volume string) error {
	if err := d.permit(volume); err != nil {
		return err
	}
	return d.flush(volume)
}

// detachImage sets the disk of an image that shows no volume offline, and detaches the image.
func (d *linkDisks) detachImage(image string) error {
	number, found, err := d.numberOf(linkRecord{Image: image})
	if err != nil {
		return err
	}
	if found {
		err = d.setOnline(number, false)
	}
	return errors.Join(err, d.detachIfAttached(image))
}

// GrowImage makes a virtual disk larger, also while it is attached if this system can do that.
func (h Host) GrowImage(ctx context.Context, path string, size int64) error {
	if !h.hasDisks() {
		return errNoImages
	}
	path, err := h.imagePath(path)
	if err != nil {
		return err
	}
	return h.disks.aside(ctx, h.Key(path), func(context.Context) error {
		info, err := h.disks.vhdx(path)
		if err != nil || info.Size >= size {
			return err
		}
		err = h.disks.resizeVHDX(path, (size+vhdxUnit-1)/vhdxUnit*vhdxUnit)
		if err != nil && info.Attached {
			return fmt.Errorf("%w: this system grows the image %s only while no pod uses it: %w", mounter.ErrBusy,
				path, err)
		}
		if err != nil {
			return err
		}
		if info, err = h.disks.vhdx(path); err == nil && info.Size < size {
			err = fmt.Errorf("%s has %d bytes after growth, must have %d", path, info.Size, size)
		}
		return err
	})
}

// ImageSize returns the size of a virtual disk.
func (h Host) ImageSize(path string) (int64, error) {
	if !h.hasDisks() {
		return 0, errNoImages
	}
	path, err := h.imagePath(path)
	if err != nil {
		return 0, err
	}
	info, err := h.disks.vhdx(path)
	return info.Size, err
}
