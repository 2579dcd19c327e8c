package store

// Space is the room of the root's filesystem.
type Space struct {
	Total      int64 // bytes, used or free, without those for root alone
	Free       int64 // bytes
	Inodes     int64 // 0 if the filesystem has no fixed number of them
	FreeInodes int64
	ReadOnly   bool
	Whole      bool // everything on the filesystem belongs to the store
}

// objectInodes is the number of inodes of a new volume: its directory, its record and its data.
const objectInodes = 3

// NoInodes reports whether the filesystem has too few inodes for one more volume.
func (d Space) NoInodes() bool { return d.Inodes > 0 && d.FreeInodes < objectInodes }

// Offered returns the room for new volumes as GetCapacity reports it: that of Available, if a volume
// can be made.
func (d Space) Offered(reserved int64) int64 {
	if d.NoInodes() {
		return 0
	}
	return d.Available(reserved)
}

// Available returns the bytes that are left for new volumes.
//
// If everything on the filesystem belongs to the store, its size less the reserved bytes is left, or
// less if volumes hold more than was reserved. On a filesystem that is shared with others, the store
// cannot tell which part of the reserved bytes is used already. So it takes all of them off the free
// bytes: it then offers too little, never too much.
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
