package hostpath

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// volumeFormat is the form of record.json. Version 1 is the first.
var volumeFormat = record.Format{Version: 1}

// volume is the content of a record.json. It never changes once it is in the index.
type volume struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"` // given to CreateVolume, or the kubelet's handle of an inline volume
	Size    int64     `json:"size"` // bytes
	Inline  bool      `json:"inline,omitempty"`
	Kind    kind      `json:"kind"`
	FSType  string    `json:"fsType,omitempty"` // in an image; "" if there is none
	Block   bool      `json:"block,omitempty"`  // an image may be used as a block device
	Sector  int       `json:"sector,omitempty"` // of an image, in bytes
	Created time.Time `json:"created"`
}

// check returns an error for a record that this release can't have written to the directory called id.
func (v *volume) check(id string) error {
	parsed, err := volumeid.Parse(id)
	switch {
	case err != nil:
		return err
	case v.ID != id:
		return fmt.Errorf("%w: it is of volume %.64q", record.ErrDamaged, v.ID)
	case v.Size < 0 || v.Name == "" || v.Inline != parsed.Inline:
		return fmt.Errorf("%w: a value in it makes no sense", record.ErrDamaged)
	case v.Kind == directory, v.Kind == image && v.Sector > 0:
		return nil
	}
	return fmt.Errorf("%w: its kind %.32q makes no sense", record.ErrDamaged, v.Kind)
}

func (v *volume) public() backend.Volume {
	id := v.ID
	if v.Inline {
		id = v.Name
	}
	return backend.Volume{ID: id, Size: v.Size, Parameters: map[string]string{kindKey: string(v.Kind)}, Inline: v.Inline}
}

// index is what is known of all volumes. Its zero value is empty.
type index struct {
	mu       sync.RWMutex
	byID     map[string]*volume // from CreateVolume
	ids      []string           // the keys of byID and of broken, sorted: what pages are cut from
	inline   map[string]*volume // by the kubelet's handle
	broken   map[string]error   // directories whose record can't be used, by name
	promised int64              // bytes, of volumes that are there or being made
}

// replace makes the index hold exactly these volumes.
func (x *index) replace(volumes []*volume, broken map[string]error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byID, x.inline, x.broken, x.ids, x.promised = map[string]*volume{}, map[string]*volume{}, broken, nil, 0
	for _, v := range volumes {
		if x.promised = addCapped(x.promised, v.Size); v.Inline {
			x.inline[v.Name] = v
		} else {
			x.byID[v.ID] = v
			x.ids = append(x.ids, v.ID)
		}
	}
	for id := range broken {
		x.ids = append(x.ids, id)
	}
	slices.Sort(x.ids)
}

// find returns the volume with this ID, or the inline volume with this handle. Errors: ErrNotFound, or what is wrong
// with its record.
func (x *index) find(id string) (*volume, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if v := x.byID[id]; v != nil {
		return v, nil
	}
	if v := x.inline[id]; v != nil {
		return v, nil
	}
	if err := x.broken[id]; err != nil {
		return nil, fmt.Errorf("volume %s can't be used: %w", id, err)
	}
	return nil, fmt.Errorf("%w: volume %.128q", backend.ErrNotFound, id)
}

// reserve promises size bytes if available, called with what is promised already, allows it.
func (x *index) reserve(size int64, available func(promised int64) int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if room := available(x.promised); size > room {
		return fmt.Errorf("%w: %d bytes are wanted, %d are left", backend.ErrExhausted, size, room)
	}
	x.promised = addCapped(x.promised, size)
	return nil
}

// release takes the promise of reserve back.
func (x *index) release(size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promised -= size
}

// put adds a volume whose size is reserved.
func (x *index) put(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if v.Inline {
		x.inline[v.Name] = v
		return
	}
	x.byID[v.ID] = v
	if i, found := slices.BinarySearch(x.ids, v.ID); !found {
		x.ids = slices.Insert(x.ids, i, v.ID)
	}
}

// breaks notes why the volume with this ID, or inline volume with this handle, can't be used until the next start.
func (x *index) breaks(id string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.broken[id] = err
	if i, found := slices.BinarySearch(x.ids, id); !found {
		x.ids = slices.Insert(x.ids, i, id)
	}
}

// drop takes a volume and the promise of its size out.
func (x *index) drop(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promised -= v.Size
	if v.Inline {
		delete(x.inline, v.Name)
		return
	}
	delete(x.byID, v.ID)
	if i, found := slices.BinarySearch(x.ids, v.ID); found {
		x.ids = slices.Delete(x.ids, i, i+1)
	}
}

// after calls see with each volume above the ID after, in order, until it returns false. A broken one comes with its
// error and no volume.
func (x *index) after(after string, see func(id string, v *volume, err error) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	i, found := slices.BinarySearch(x.ids, after)
	if found {
		i++
	}
	for _, id := range x.ids[i:] {
		if !see(id, x.byID[id], x.broken[id]) {
			return
		}
	}
}

// addCapped is a + b for positive numbers, and no overflow: a record may say any size.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
