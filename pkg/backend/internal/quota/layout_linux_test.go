package quota

import (
	"testing"
	"unsafe"
)

func TestStructsHaveTheLayoutOfTheKernel(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"fs_disk_quota":  {unsafe.Sizeof(diskQuota{}), 112},
		"fs_quota_statv": {unsafe.Sizeof(quotaState{}), 160},
		// For structs whose size is in no ioctl number, offsets are compared.
		"d_bcount":   {unsafe.Offsetof(diskQuota{}.used), 40},
		"d_icount":   {unsafe.Offsetof(diskQuota{}.files), 48},
		"d_rtb":      {unsafe.Offsetof(diskQuota{}.realtime), 72},
		"fsx_projid": {unsafe.Offsetof(fsxattr{}.project), 12},
		"max_rfer":   {unsafe.Offsetof(limitArgs{}.maxReferenced), 16},
		"subvolid":   {unsafe.Offsetof(volumeArgs{}.name), 56},
		"min_type":   {unsafe.Offsetof(searchArgs{}.minType), 56},
		"nr_items":   {unsafe.Offsetof(searchArgs{}.items), 64},
		"buf":        {unsafe.Offsetof(searchArgs{}.found), 104},
	} {
		if size[0] != size[1] {
			t.Errorf("%s: %d, want %d", name, size[0], size[1])
		}
	}
}

// TestNumbersOfIoctlsHaveTheSizesOfTheirStructs: the number of an ioctl has the size of its
// argument in bits 16 to 29.
func TestNumbersOfIoctlsHaveTheSizesOfTheirStructs(t *testing.T) {
	for _, c := range []struct {
		request
		size uintptr
	}{
		{getXattr, unsafe.Sizeof(fsxattr{})},
		{setXattr, unsafe.Sizeof(fsxattr{})},
		{createSubvolume, unsafe.Sizeof(volumeArgs{})},
		{createSnapshot, unsafe.Sizeof(volumeArgs{})},
		{destroy, unsafe.Sizeof(volumeArgs{})},
		{getFlags, unsafe.Sizeof(uint64(0))},
		{setFlags, unsafe.Sizeof(uint64(0))},
		{lookUp, unsafe.Sizeof(lookUpArgs{})},
		{search, unsafe.Sizeof(searchArgs{})},
		{limitGroup, unsafe.Sizeof(limitArgs{})},
		{createGroup, unsafe.Sizeof(createArgs{})},
		{rescanStatus, unsafe.Sizeof(rescanArgs{})},
		{rescanWait, 0},
		{startSync, unsafe.Sizeof(uint64(0))},
		{waitSync, unsafe.Sizeof(uint64(0))},
	} {
		if got := c.number >> 16 & 0x3fff; got != c.size {
			t.Errorf("%s takes %d bytes, the struct has %d", c.name, got, c.size)
		}
	}
}
