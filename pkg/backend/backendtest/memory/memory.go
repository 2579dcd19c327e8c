// Package memory is a backend whose volumes are in memory: every interface of package backend in its smallest form, to
// read before writing one's own, and to test with what is above a backend.
//
// Only what a mounter mounts is on disk, a directory or a file for each volume. One Backend is the storage itself: where
// a test starts a driver again, it goes on with the same.
package memory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// What a Backend is. It isn't NodeLocal, as that is storage which needs no attaching.
var (
	_ backend.Backend          = (*Backend)(nil)
	_ backend.Lister           = (*Backend)(nil)
	_ backend.CapacityReporter            = (*Backend)(nil)
	_ backend.Expander         = (*Backend)(nil)
	_ backend.Inliner          = (*Backend)(nil)
	_ backend.Attacher         = (*Backend)(nil)
	_ backend.Limiter          = (*Backend)(nil)
	_ backend.Snapshotter      = (*Backend)(nil)
	_ backend.Cloner           = (*Backend)(nil)
	_ backend.GroupSnapshotter = (*Backend)(nil)
	_ backend.PartSnapshotter  = (*Backend)(nil)
	_ backend.Differ           = (*Backend)(nil)
	_ backend.Modifier         = (*Backend)(nil)
	_ backend.Prober           = (*Backend)(nil)
	_ backend.UsageReporter         = (*Backend)(nil)
	_ backend.HealthReporter           = (*Backend)(nil)
	_ backend.MetricsSource            = (*Backend)(nil)
)

// Config is what a Backend needs.
type Config struct {
	Dir   string   // an existing directory, for what is mounted
	Size  int64    // bytes of all volumes and snapshots together
	Nodes []string // IDs of the nodes that volumes can be attached to
	Limit int64    // how many volumes one node takes; 0 is any number

	// Attached makes a volume without a filesystem a disk that must be attached, before its node has a
	// device: a mounter.BlockDevice. A file plays that device.
	Attached bool
}

// Backend is the storage. The zero value is not usable: see New.
type Backend struct {
	cfg Config

	mu        sync.Mutex
	volumes   map[string]*volume   // by ID; an inline one by the kubelet's handle
	snapshots map[string]*snapshot // by ID
	groups    map[string]*group    // by ID
	making    map[string]*group    // parts that somebody is asked about, by ID
	promised  int64                // bytes of all volumes and snapshots
	attached  int                  // how often a volume was attached
}

// New returns storage without volumes.
func New(cfg Config) *Backend {
	return &Backend{
		cfg: cfg, volumes: map[string]*volume{}, snapshots: map[string]*snapshot{},
		groups: map[string]*group{}, making: map[string]*group{},
	}
}

// volume is what there is of a volume.
type volume struct {
	id     string
	size   int64
	data   data
	from   source
	tier   tier
	inline bool
	nodes  map[string]attachment // by the node's ID
}

// public returns v as others see it. They may keep it, so it shares nothing with v.
func (v *volume) public() backend.Volume {
	return backend.Volume{
		ID: v.id, Size: v.size, Inline: v.inline, Parameters: v.tier.parameters(), Mutable: v.tier.mutable(),
		SourceSnapshot: v.from.snapshot, SourceVolume: v.from.volume, Nodes: slices.Sorted(maps.Keys(v.nodes)),
	}
}

// find returns the volume with this ID. b.mu must be held.
func (b *Backend) find(id string) (*volume, error) {
	v, ok := b.volumes[id]
	if !ok {
		return nil, fmt.Errorf("%w: volume %.128q", backend.ErrNotFound, id)
	}
	return v, nil
}

// Create makes a volume.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, idOf("mem-", o.Name), o, &volume{})
}

// idOf returns the ID of what has this name: a digest, so that a call which is repeated finds what it made.
func idOf(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:])
}

// inlineHandle is how the kubelet names inline volumes. No ID from Create looks like that.
var inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// CreateInline makes a volume for the life of one pod.
func (b *Backend) CreateInline(ctx context.Context, handle string, o backend.CreateOptions) (backend.Volume, error) {
	if !inlineHandle.MatchString(handle) {
		return backend.Volume{}, fmt.Errorf("%w: an inline volume's handle is csi- and 64 hexadecimal digits", backend.ErrInvalid)
	}
	return b.create(ctx, handle, o, &volume{inline: true})
}

// create finds the volume with this ID, or makes it of v, which says where it is from and whether it is inline.
func (b *Backend) create(ctx context.Context, id string, o backend.CreateOptions, v *volume) (backend.Volume, error) {
	block, err := check(o)
	if err != nil {
		return backend.Volume{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Volume{}, err
	}
	if there, ok := b.volumes[id]; ok {
		if there.size < o.Required || (o.Limit > 0 && there.size > o.Limit) || there.data.block != block || there.from != v.from || !there.tier.fits(o) {
			return backend.Volume{}, fmt.Errorf("%w: it has %d bytes, is a block device: %v, was made from %s, and has %v, made with %v",
				backend.ErrExists, there.size, there.data.block, there.from, there.tier.mutable(), there.tier.parameters())
		}
		return there.public(), nil
	}
	v.id, v.tier, v.nodes = id, tierOf(o), map[string]attachment{}
	if v.data, v.size, err = b.fill(v.from, o, block); err != nil {
		return backend.Volume{}, err
	}
	b.volumes[id] = v
	return v.public(), nil
}

// defaultSize is the size in bytes of a volume for which none is asked.
const defaultSize = 1 << 30

// fill returns data for a volume with what there is in its source, and its size. b.mu must be held.
func (b *Backend) fill(from source, o backend.CreateOptions, block bool) (d data, size int64, err error) {
	content, least, err := b.contentOf(from, block)
	if err != nil {
		return data{}, 0, err
	}
	size = cmp.Or(o.Required, least, min(defaultSize, cmp.Or(o.Limit, defaultSize)))
	if size < least || (o.Limit > 0 && size > o.Limit) {
		return data{}, 0, fmt.Errorf("%w: invalid size: must be at least the %d bytes of %s", backend.ErrOutOfRange, least, from)
	}
	d, err = b.newData(content, block, size)
	return d, size, err
}

// findPersistent returns the volume with this ID, if Create or one of its kin made it. b.mu must be held.
func (b *Backend) findPersistent(id string) (*volume, error) {
	v, err := b.find(id)
	if err == nil && v.inline {
		err = fmt.Errorf("%w: volume %.128q is a pod's inline volume", backend.ErrNotFound, id)
	}
	return v, err
}

// Expand grows a volume. The node has to grow the device of a disk that it has.
func (b *Backend) Expand(_ context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.findPersistent(id)
	if err != nil {
		return 0, false, err
	}
	size = max(v.size, o.Required)
	if room := b.cfg.Size - b.promised; size-v.size > room || (o.Limit > 0 && size > o.Limit) {
		return 0, false, fmt.Errorf("%w: it has %d bytes, %d more are left, the limit is %d", backend.ErrOutOfRange, v.size, room, o.Limit)
	}
	if err := v.data.grow(size); err != nil {
		return 0, false, err
	}
	b.promised += size - v.size
	v.size = size
	return size, v.data.block, nil
}

// Get returns the volume.
func (b *Backend) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.find(id)
	if err != nil {
		return backend.Volume{}, err
	}
	return v.public(), nil
}

// Delete forgets the volume.
func (b *Backend) Delete(_ context.Context, id string, _ map[string]string) error {
	return b.remove(id, false)
}

// DeleteInline forgets an inline volume.
func (b *Backend) DeleteInline(_ context.Context, handle string) error {
	return b.remove(handle, true)
}

func (b *Backend) remove(id string, inline bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.volumes[id]
	if !ok || v.inline != inline {
		return nil
	}
	if len(v.nodes) > 0 {
		return fmt.Errorf("%w: volume %s is attached to %q", backend.ErrInUse, id, slices.Sorted(maps.Keys(v.nodes)))
	}
	if err := b.uncut(id); err != nil {
		return err
	}
	b.discard(v.data, v.size)
	delete(b.volumes, id)
	return nil
}

// Mount returns the volume's directory or disk. Where it was attached read-only it can't be written, whatever is asked for.
func (b *Backend) Mount(_ context.Context, id string, a backend.Access) (mounter.Mount, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.find(id)
	if err != nil {
		return mounter.Mount{}, err
	}
	if err := checkAccess(a, v.data.block); err != nil {
		return mounter.Mount{}, err
	}
	readOnly, err := v.attachedReadOnly(a.PublishContext)
	if err != nil {
		return mounter.Mount{}, err
	}
	m := mounter.Mount{Kind: v.data.kind(), Source: v.data.path, Options: a.Options, ReadOnly: a.ReadOnly || readOnly}
	if m.Kind == mounter.Disk {
		m.Sector = sector
	}
	if m.Kind == mounter.Disk && b.cfg.Attached {
		m.Kind, m.Sector, m.Serial = mounter.BlockDevice, 0, v.id
		if a.PublishContext == nil {
			m.Source = ""
		}
	}
	return m, nil
}

// check returns an error for a volume that there can't be, and whether it is a block device.
func check(o backend.CreateOptions) (block bool, err error) {
	if err := cmp.Or(checkTier(o.Parameters, tiers...), checkMutable(o.Mutable)); err != nil {
		return false, err
	}
	block = len(o.Access) > 0 && o.Access[0].Block
	for _, a := range o.Access {
		if err := checkAccess(a, block); err != nil {
			return block, err
		}
	}
	return block, nil
}

// checkAccess returns an error for a use that a volume doesn't have.
func checkAccess(a backend.Access, block bool) error {
	switch {
	case a.Block != block:
		return fmt.Errorf("%w: a volume is a directory or a block device, not both", backend.ErrInvalid)
	case a.FSType != "":
		return fmt.Errorf("%w: a directory has no filesystem of its own: leave fsType %.64q out", backend.ErrInvalid, a.FSType)
	case len(a.Context) > 0:
		return fmt.Errorf("%w: the volumes of this backend have no context", backend.ErrInvalid)
	}
	if err := mounter.CheckOptions(data{block: block}.kind(), "", a.Options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return nil
}

// List returns volumes in the order of their IDs.
func (b *Backend) List(_ context.Context, after string, limit int) (volumes []backend.Volume, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	volumes, more = page(b.volumes, after, limit, func(v *volume) (backend.Volume, bool) { return v.public(), !v.inline })
	return volumes, more, nil
}

// page returns what show makes of all with IDs above after, in order and up to limit, and whether there is more. show
// may leave one out.
func page[T, S any](all map[string]T, after string, limit int, show func(T) (S, bool)) (shown []S, more bool) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if id <= after {
			continue
		}
		switch s, ok := show(all[id]); {
		case !ok:
		case len(shown) == limit:
			return shown, true
		default:
			shown = append(shown, s)
		}
	}
	return shown, false
}

// Capacity returns what is left of Config.Size.
func (b *Backend) Capacity(_ context.Context, o backend.CreateOptions) (backend.Capacity, error) {
	for _, a := range o.Access {
		if a.FSType != "" {
			return backend.Capacity{}, nil // there can be no such volume here
		}
	}
	if _, err := check(o); err != nil {
		return backend.Capacity{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.cfg.Size - b.promised
	return backend.Capacity{Available: room, Maximum: room}, nil
}

// Usage adds up what is in the volume's directory: the filesystem knows of no limit.
func (b *Backend) Usage(_ context.Context, id string) (u mounter.Usage, known bool, err error) {
	b.mu.Lock()
	v, err := b.find(id)
	b.mu.Unlock()
	if err != nil || v.data.block {
		return u, false, err
	}
	u.TotalBytes = v.size
	err = filepath.WalkDir(v.data.path, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			u.UsedBytes += info.Size()
		}
		return err
	})
	u.AvailableBytes = max(0, u.TotalBytes-u.UsedBytes)
	return u, err == nil, err
}

// Probe reports ready while there is the directory.
func (b *Backend) Probe(context.Context) (bool, error) {
	if _, err := os.Stat(b.cfg.Dir); err != nil {
		return false, fmt.Errorf("%w: %w", backend.ErrNotReady, err)
	}
	return true, nil
}

// Health looks whether the volume's data is there.
func (b *Backend) Health(_ context.Context, id string) ([]backend.Condition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.find(id)
	if err != nil {
		return nil, err
	}
	return v.health(), nil
}

// ListHealth looks at all volumes above after.
func (b *Backend) ListHealth(_ context.Context, after string, limit int) (sick []backend.VolumeHealth, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sick, more = page(b.volumes, after, limit, func(v *volume) (backend.VolumeHealth, bool) {
		if v.inline {
			return backend.VolumeHealth{}, false
		}
		conditions := v.health()
		return backend.VolumeHealth{ID: v.id, Conditions: conditions}, len(conditions) > 0
	})
	return sick, more, nil
}

// health returns what is wrong with v.
func (v *volume) health() []backend.Condition {
	_, err := os.Stat(v.data.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []backend.Condition{{Severity: backend.DataLoss, Reason: "DataMissing", Message: fmt.Sprintf("%s is gone: restore it from a backup", v.data.path)}}
	case err != nil:
		return []backend.Condition{{Severity: backend.Inaccessible, Reason: "DataUnreadable", Message: err.Error()}}
	}
	return nil
}

// StorageHealth says what Probe says.
func (b *Backend) StorageHealth(ctx context.Context) ([]backend.Condition, error) {
	if _, err := b.Probe(ctx); err != nil {
		return []backend.Condition{{Severity: backend.Inaccessible, Reason: "RootUnusable", Message: err.Error()}}, nil
	}
	return nil, nil
}

// Metrics counts what there is.
func (b *Backend) Metrics() []backend.Metric {
	b.mu.Lock()
	defer b.mu.Unlock()
	inline, attached := 0, 0
	for _, v := range b.volumes {
		attached += len(v.nodes)
		if v.inline {
			inline++
		}
	}
	return []backend.Metric{
		{Name: "volumes", Help: "Volumes made by CreateVolume.", Value: float64(len(b.volumes) - inline)},
		{Name: "inline_volumes", Help: "Inline ephemeral volumes.", Value: float64(inline)},
		{Name: "snapshots", Help: "Snapshots, members of groups too.", Value: float64(len(b.snapshots))},
		{Name: "snapshot_groups", Help: "Groups of snapshots.", Value: float64(len(b.groups))},
		{Name: "promised_bytes", Help: "Sum of the sizes of all volumes and snapshots.", Value: float64(b.promised)},
		{Name: "attachments", Help: "Pairs of a volume and a node that it is attached to.", Value: float64(attached)},
		{Name: "attached_total", Help: "How often a volume was attached to a node.", Value: float64(b.attached), Counter: true},
	}
}
