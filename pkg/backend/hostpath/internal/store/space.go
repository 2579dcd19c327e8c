package store

// Space is the space of the root's filesystem.
type Space struct {
	Total      int64 // bytes, used or free, without those for root alone
	Free       int64 // bytes
	Inodes     int64 // 0 if the filesystem has no fixed number of inodes
	FreeInodes int64
	ReadOnly   bool
	Whole      bool // all data on the filesystem belongs to the store
}

// objectInodes is the number of inodes of a new volume: its directory, its record and its data.
const objectInodes = 3

// NoInodes reports whether the filesystem has too few inodes for another volume.
func (d Space) NoInodes() bool { return d.Inodes > 0 && d.FreeInodes < objectInodes }

// Offered returns the available space as GetCapacity reports it: that of Available, or 0 if there
// are too few inodes.
func (d Space) Offered(reserved int64) int64 {
	if d.NoInodes() {
		return 0
	}
	return d.Available(reserved)
}

// Available returns the bytes that are available for new volumes.
//
// If all data on the filesystem belongs to the store, the result is the size of the filesystem
// minus the reserved bytes, but not more than the free bytes. On a filesystem that is shared with
// others, the store cannot find out which part of the reserved bytes is used already. So it
// subtracts all of them from the free bytes: the result is too low, never too high.
func (d Space) Available(reserved int64) int64 {
	left := d.Free - reserved
	if d.Whole {
		left = min(d.Free, d.Total-reserved)
	}
	if d.ReadOnly {
		return 0
	}
	return max(0, left)
}
