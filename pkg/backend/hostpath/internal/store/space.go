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

// Offered returns the available space as GetCapacity reports it: that of Available, if a volume can
// be made.
func (d Space) Offered(reserved int64) int64 {
	if d.NoInodes() {
		return 0
	}
	return d.Available(reserved)
}

// Available returns the bytes that are available for new volumes.
//
// If all data on the filesystem belongs to the store, that is its size less the reserved bytes, or
// less if volumes hold more than was reserved. On a filesystem that is shared with others, the
// store cannot find out which part of the reserved bytes is used already. So it subtracts all of
// them from the free bytes: the result is too low, never too high.
func (d Space) Available(reserved int64) int64 {
	room := d.Free - reserved
	if d.Whole {
		room = min(d.Free, d.Total-reserved)
	}
	if d.ReadOnly {
		return 0
	}
	return max(0, room)
}
