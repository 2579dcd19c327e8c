//go:build !winetest

package win

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kubernetes-csi/csi-proxy/v2/pkg/cim"
	"github.com/kubernetes-csi/csi-proxy/v2/pkg/disk"
	diskapi "github.com/kubernetes-csi/csi-proxy/v2/pkg/disk/hostapi"
	volumeapi "github.com/kubernetes-csi/csi-proxy/v2/pkg/volume/hostapi"

	"github.com/causeway-csi/causeway/internal/dacl"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/signature"
)

func (windowsDisks) Rescan() error { return diskapi.New().Rescan() }

func (windowsDisks) IsOnline(number uint32) (bool, error) { return diskapi.New().GetDiskState(number) }

func (windowsDisks) SetOnline(number uint32, online bool) error {
	return diskapi.New().SetDiskState(number, online)
}

// Partition also refreshes the cached layout of the disk.
func (windowsDisks) Partition(number uint32) error {
	group, err := disk.New(diskapi.New())
	if err != nil {
		return err
	}
	_, err = group.PartitionDisk(context.Background(), &disk.PartitionDiskRequest{DiskNumber: number})
	return err
}

func (windowsDisks) Volumes(number uint32) ([]string, error) {
	return volumeapi.New().ListVolumesOnDisk(number, 0)
}

func (windowsDisks) DiskOf(volume string) (uint32, error) {
	return volumeapi.New().GetDiskNumberFromVolumeID(volume)
}

func (windowsDisks) Format(volume string) error { return volumeapi.New().FormatVolume(volume) }

func (windowsDisks) Permit(volume string) error { return dacl.Set(volume, dacl.Users) }

func (windowsDisks) Flush(volume string) error { return volumeapi.New().WriteVolumeCache(volume) }

func (windowsDisks) VolumeSize(volume string) (int64, error) {
	size, _, err := volumeapi.New().GetVolumeStats(volume)
	return size, err
}

// propertyReader is an object of WMI.
type propertyReader interface {
	GetProperty(name string) (any, error)
}

// property returns a property as a text: "" if it is NULL.
func property(object propertyReader, name string) (string, error) {
	value, err := object.GetProperty(name)
	if err != nil {
		return "", fmt.Errorf("property %s: %w", name, err)
	}
	if value == nil {
		return "", nil
	}
	return fmt.Sprint(value), nil
}

// number returns a property that is a number. Numbers of 64 bits are texts in WMI.
func number(object propertyReader, name string) (int64, error) {
	text, err := property(object, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("property %s: %w", name, err)
	}
	return n, nil
}

func (windowsDisks) Disks() (all []links.DiskInfo, err error) {
	err = cim.WithCOMThread(func() error {
		found, err := cim.ListDisks([]string{"Number", "Path", "SerialNumber", "Size", "IsReadOnly"})
		if err != nil {
			return err
		}
		for _, d := range found {
			info, err := describeDisk(d)
			if err != nil {
				return err
			}
			all = append(all, info)
		}
		return nil
	})
	return all, err
}

func describeDisk(d propertyReader) (info links.DiskInfo, err error) {
	n, numberErr := number(d, "Number")
	size, sizeErr := number(d, "Size")
	serial, serialErr := property(d, "SerialNumber")
	path, pathErr := property(d, "Path")
	readOnly, flagErr := property(d, "IsReadOnly")
	info = links.DiskInfo{Number: uint32(n), Serial: serial, Size: size, ReadOnly: readOnly == "true"}
	// A disk that cannot be opened has no such ID. It is another disk, or is found by its number.
	if at, id, err := diskapi.New().GetDiskNumberAndPage83ID(path); err == nil && at == info.Number {
		info.Page83 = id
	}
	return info, errors.Join(numberErr, sizeErr, serialErr, pathErr, flagErr)
}

func (windowsDisks) Partitions(disk uint32) (all []signature.Region, err error) {
	err = cim.WithCOMThread(func() error {
		found, err := cim.ListPartitionsWithFilters([]string{"ObjectId", "Offset", "Size", "GptType"},
			cim.FilterForPartitionOnDisk(disk))
		if err != nil {
			return err
		}
		for _, p := range found {
			gptType, err := property(p, "GptType")
			if err != nil {
				return err
			}
			offset, offsetErr := number(p, "Offset")
			length, lengthErr := number(p, "Size")
			if err := errors.Join(offsetErr, lengthErr); err != nil {
				return err
			}
			if !strings.EqualFold(gptType, cim.GPTPartitionTypeMicrosoftReserved) {
				all = append(all, signature.Region{Offset: offset, Length: length})
			}
		}
		return nil
	})
	return all, err
}

func (windowsDisks) Filesystem(volume string) (name string, err error) {
	err = cim.WithCOMThread(func() error {
		v, err := cim.QueryVolumeByUniqueID(volume, []string{"FileSystem"})
		if err != nil {
			return err
		}
		name, err = property(v, "FileSystem")
		return err
	})
	if name = strings.ToLower(name); name == "raw" {
		name = ""
	}
	return name, err
}

// GrowVolume resizes the partition itself: ResizeVolume of the library does not grow it by less
// than 100 MiB.
func (windowsDisks) GrowVolume(volume string) (size int64, err error) {
	err = cim.WithCOMThread(func() error {
		part, err := cim.GetPartitionByVolumeUniqueID(volume)
		if err != nil {
			return err
		}
		if size, err = cim.GetPartitionSize(part); err != nil {
			return err
		}
		code, _, largest, status, err := cim.GetPartitionSupportedSize(part)
		if err = coded(code, status, err); err != nil {
			return fmt.Errorf("sizes of the partition of %s: %w", volume, err)
		}
		if largest <= size {
			return nil
		}
		size = largest
		code, status, err = cim.ResizePartition(part, largest)
		if err = coded(code, status, err); err != nil {
			return fmt.Errorf("resize the partition of %s to %d bytes: %w", volume, largest, err)
		}
		return nil
	})
	return size, err
}

// coded returns an error for the answer of a method of WMI.
func coded(code int, status string, err error) error {
	if err == nil && code != 0 {
		err = fmt.Errorf("code %d %s", code, status)
	}
	return err
}
