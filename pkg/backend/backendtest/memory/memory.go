// Package memory is a backend with volumes in memory. The type [Backend] implements each interface
// of package backend, except NodeLocal, in its smallest form. Read this package before you write a
// backend, and use it to test the layers above a backend.
//
// Only the mount sources are on disk: a directory or a file for each volume. A [Backend] is the
// storage itself: a test that restarts a driver passes the same Backend again.
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

// The interfaces that Backend implements. NodeLocal is not among them, as that is for storage
// without attaching, nor are Reacher and Grouper, which are for shares.
var (
	_ backend.Backend          = (*Backend)(nil)
	_ backend.Lister           = (*Backend)(nil)
	_ backend.CapacityReporter = (*Backend)(nil)
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
	_ backend.UsageReporter    = (*Backend)(nil)
	_ backend.HealthReporter   = (*Backend)(nil)
	_ backend.MetricsSource    = (*Backend)(nil)
)

// Config configures a [Backend].
type Config struct {
	Dir   string   // Existing directory for the mount sources.
	Size  int64    // Bytes of all volumes and snapshots together.
	Nodes []string // IDs of the nodes to which volumes can be attached.
	Limit int64    // Greatest number of volumes on a node. 0: no limit.

	// Attached turns a volume without a filesystem into a disk that must be attached before its
	// node has a device: a [mounter.BlockDevice]. A file stands for that device.
	Attached bool
}

// Backend is storage in memory. Create it with [New]: the zero value is not usable.
type Backend struct {
	cfg Config

	mu        sync.Mutex
	volumes   map[string]*volume   // by ID; an inline volume by its handle
	snapshots map[string]*snapshot // by ID
	groups    map[string]*group    // by ID
	making    map[string]*group    // parts that SnapshotPart is creating, by ID
	reserved  int64                // bytes of all volumes and snapshots
	attached  int                  // number of calls that attached a volume
}

// New returns a Backend without volumes.
func New(cfg Config) *Backend {
	return &Backend{
		cfg: cfg, volumes: map[string]*volume{}, snapshots: map[string]*snapshot{},
		groups: map[string]*group{}, making: map[string]*group{},
	}
}

// volume is a volume with its data.
type volume struct {
	id     string
	size   int64
	data   data
	from   source
	tier   tier
	inline bool
	nodes  map[string]attachment // by node ID
}

// public returns a description of v for a caller. The caller may keep it, so it shares nothing with
// v.
func (v *volume) public() backend.Volume {
	return backend.Volume{
		ID: v.id, Size: v.size, Inline: v.inline, Parameters: v.tier.parameters(), Mutable: v.tier.mutable(),
		SourceSnapshot: v.from.snapshot, SourceVolume: v.from.volume, Nodes: slices.Sorted(maps.Keys(v.nodes)),
	}
}

// find returns the volume with this ID. The caller holds b.mu.
func (b *Backend) find(id string) (*volume, error) {
	v, ok := b.volumes[id]
	if !ok {
		return nil, fmt.Errorf("%w: volume %.128q", backend.ErrNotFound, id)
	}
	return v, nil
}

// Create creates a volume, or returns the volume of an earlier call. See [backend.Backend] for the
// errors. CSI spec v1.13, CreateVolume.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	return b.create(ctx, idOf("mem-", o.Name), o, &volume{})
}

// idOf returns the ID of the object with this name. The ID is a digest of the name, so that a
// repeated call finds the object of the first call.
func idOf(prefix, name string) string {
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:])
}

// inlineHandle matches the handles of the kubelet for inline volumes. No ID from Create matches.
var inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// CreateInline creates an inline volume with the ID handle, or returns the volume of an earlier
// call. See [backend.Inliner] for the errors.
func (b *Backend) CreateInline(ctx context.Context, handle string, o backend.CreateOptions) (backend.Volume, error) {
	if !inlineHandle.MatchString(handle) {
		return backend.Volume{}, fmt.Errorf("%w: invalid handle %.128q: must be csi- and 64 hexadecimal digits",
			backend.ErrInvalid, handle)
	}
	return b.create(ctx, handle, o, &volume{inline: true})
}

// create returns the volume with this ID. If there is none, create completes v and adds v to b. The
// caller sets v.from and v.inline.
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
	if found, ok := b.volumes[id]; ok {
		if found.size < o.Required || (o.Limit > 0 && found.size > o.Limit) ||
			found.data.block != block || found.from != v.from || !found.tier.fits(o) {
			return backend.Volume{}, fmt.Errorf("%w: volume %s has size %d, block device %v, source %s, "+
				"mutable parameters %v and parameters %v",
				backend.ErrExists, id, found.size, found.data.block, found.from,
				found.tier.mutable(), found.tier.parameters())
		}
		return found.public(), nil
	}
	v.id, v.tier, v.nodes = id, tierOf(o), map[string]attachment{}
	if v.data, v.size, err = b.fill(v.from, o, block); err != nil {
		return backend.Volume{}, err
	}
	b.volumes[id] = v
	return v.public(), nil
}

// defaultSize is the size in bytes of a volume if the request names no size.
const defaultSize = 1 << 30

// fill creates data with the content of the source and returns it with its size in bytes. The
// caller holds b.mu.
func (b *Backend) fill(from source, o backend.CreateOptions, block bool) (d data, size int64, err error) {
	content, least, err := b.contentOf(from, block)
	if err != nil {
		return data{}, 0, err
	}
	size = cmp.Or(o.Required, least, min(defaultSize, cmp.Or(o.Limit, defaultSize)))
	if size < least || (o.Limit > 0 && size > o.Limit) {
		return data{}, 0, fmt.Errorf("%w: invalid size %d: must be at least %d for source %s, and at most the limit %d",
			backend.ErrOutOfRange, size, least, from, o.Limit)
	}
	d, err = b.newData(content, block, size)
	return d, size, err
}

// findPersistent returns the volume with this ID, or ErrNotFound for an inline volume. The caller
// holds b.mu.
func (b *Backend) findPersistent(id string) (*volume, error) {
	v, err := b.find(id)
	if err == nil && v.inline {
		err = fmt.Errorf("%w: volume %.128q is an inline volume", backend.ErrNotFound, id)
	}
	return v, err
}

// Expand expands a volume. The result node is true for a block device, so that the node grows the
// device. See [backend.Expander] for the errors. CSI spec v1.13, ControllerExpandVolume.
func (b *Backend) Expand(_ context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.findPersistent(id)
	if err != nil {
		return 0, false, err
	}
	size = max(v.size, o.Required)
	if available := b.cfg.Size - b.reserved; size-v.size > available || (o.Limit > 0 && size > o.Limit) {
		return 0, false, fmt.Errorf("%w: volume %s has %d bytes, %d more are available, the limit is %d",
			backend.ErrOutOfRange, id, v.size, available, o.Limit)
	}
	if err := v.data.grow(size); err != nil {
		return 0, false, err
	}
	b.reserved += size - v.size
	v.size = size
	return size, v.data.block, nil
}

// Get returns the volume. Errors: [backend.ErrNotFound]. CSI spec v1.13, ControllerGetVolume.
func (b *Backend) Get(_ context.Context, id string, _ map[string]string) (backend.Volume, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.find(id)
	if err != nil {
		return backend.Volume{}, err
	}
	return v.public(), nil
}

// Delete deletes the volume. An unknown ID is no error. Errors: [backend.ErrInUse].
// CSI spec v1.13, DeleteVolume.
func (b *Backend) Delete(_ context.Context, id string, _ map[string]string) error {
	return b.remove(id, false)
}

// DeleteInline deletes the inline volume. An unknown handle is no error. Errors:
// [backend.ErrInUse].
func (b *Backend) DeleteInline(_ context.Context, handle string) error {
	return b.remove(handle, true)
}

// remove deletes the volume with this ID if its field inline equals the argument.
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
	if err := b.checkNotInPart(id); err != nil {
		return err
	}
	b.discard(v.data, v.size)
	delete(b.volumes, id)
	return nil
}

// Mount returns the mount of the volume's directory or disk. The mount is read-only if the volume
// is attached read-only, even if a.ReadOnly is false. See [backend.Backend] for the errors.
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

// check returns an error if o is not valid. block reports whether the volume is a block device.
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

// checkAccess returns an error if the volume does not support a. block reports whether the volume
// is a block device.
func checkAccess(a backend.Access, block bool) error {
	switch {
	case a.Block != block:
		return fmt.Errorf("%w: a volume is either a directory or a block device", backend.ErrInvalid)
	case a.FSType != "":
		return fmt.Errorf("%w: invalid fsType %.64q: must be empty, as a directory has no filesystem of its own",
			backend.ErrInvalid, a.FSType)
	case len(a.Context) > 0:
		return fmt.Errorf("%w: the volume context must be empty", backend.ErrInvalid)
	}
	if err := mounter.CheckOptions(data{block: block}.kind(), "", a.Options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return nil
}

// List lists volumes in the order of their IDs. See [backend.Lister]. CSI spec v1.13, ListVolumes.
func (b *Backend) List(_ context.Context, after string, limit int) (volumes []backend.Volume, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	volumes, more = page(b.volumes, after, limit, func(v *volume) (backend.Volume, bool) {
		return v.public(), !v.inline
	})
	return volumes, more, nil
}

// page applies show to the values of all with a key greater than after, in ascending order of the
// keys. page returns up to limit results, and reports whether more follow. show returns false to
// leave a value out.
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

// Capacity returns the part of [Config].Size that is not reserved, in bytes. Errors:
// [backend.ErrInvalid]. CSI spec v1.13, GetCapacity.
func (b *Backend) Capacity(_ context.Context, o backend.CreateOptions) (backend.Capacity, error) {
	for _, a := range o.Access {
		if a.FSType != "" {
			return backend.Capacity{}, nil // no volume of this backend has a filesystem type
		}
	}
	if _, err := check(o); err != nil {
		return backend.Capacity{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	available := b.cfg.Size - b.reserved
	return backend.Capacity{Available: available, Maximum: available}, nil
}

// Usage returns the sum of the file sizes in the volume's directory, as the filesystem has no limit
// for the directory. Figures are in bytes, and known is false for a block device. Errors:
// [backend.ErrNotFound]. CSI spec v1.13, NodeGetVolumeStats.
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

// Probe reports ready while [Config].Dir exists. Errors: [backend.ErrNotReady]. CSI spec v1.13,
// Probe.
func (b *Backend) Probe(context.Context) (bool, error) {
	if _, err := os.Stat(b.cfg.Dir); err != nil {
		return false, fmt.Errorf("%w: %w", backend.ErrNotReady, err)
	}
	return true, nil
}

// Health returns a condition if the data of the volume is missing or unreadable. Errors:
// [backend.ErrNotFound]. CSI spec v1.13, ControllerGetVolumeHealth and NodeGetVolumeHealth.
func (b *Backend) Health(_ context.Context, id string) ([]backend.Condition, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.find(id)
	if err != nil {
		return nil, err
	}
	return v.health(), nil
}

// ListHealth lists unhealthy volumes in the order of their IDs, without inline volumes. CSI spec
// v1.13, ControllerListVolumeHealth.
func (b *Backend) ListHealth(
	_ context.Context, after string, limit int,
) (unhealthy []backend.VolumeHealth, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	unhealthy, more = page(b.volumes, after, limit, func(v *volume) (backend.VolumeHealth, bool) {
		if v.inline {
			return backend.VolumeHealth{}, false
		}
		conditions := v.health()
		return backend.VolumeHealth{ID: v.id, Conditions: conditions}, len(conditions) > 0
	})
	return unhealthy, more, nil
}

// health returns the conditions of v.
func (v *volume) health() []backend.Condition {
	_, err := os.Stat(v.data.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []backend.Condition{{
			Severity: backend.DataLoss, Reason: "DataMissing",
			Message: fmt.Sprintf("%s is missing: restore the volume from a backup", v.data.path),
		}}
	case err != nil:
		return []backend.Condition{{Severity: backend.Inaccessible, Reason: "DataUnreadable", Message: err.Error()}}
	}
	return nil
}

// StorageHealth returns a condition with the error of [Backend.Probe], if Probe fails. CSI spec
// v1.13, NodeGetStorageHealth.
func (b *Backend) StorageHealth(ctx context.Context) ([]backend.Condition, error) {
	if _, err := b.Probe(ctx); err != nil {
		return []backend.Condition{{
			Severity: backend.Inaccessible, Reason: "RootUnusable", Message: err.Error(),
		}}, nil
	}
	return nil, nil
}

// Metrics returns the numbers of objects and attachments, and the reserved bytes.
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
		{Name: "volumes", Help: "Volumes that CreateVolume created.", Value: float64(len(b.volumes) - inline)},
		{Name: "inline_volumes", Help: "Inline ephemeral volumes.", Value: float64(inline)},
		{Name: "snapshots", Help: "Snapshots, including members of group snapshots.", Value: float64(len(b.snapshots))},
		{Name: "snapshot_groups", Help: "Group snapshots.", Value: float64(len(b.groups))},
		{Name: "promised_bytes", Help: "Sum of the sizes of all volumes and snapshots.", Value: float64(b.reserved)},
		{
			Name: "attachments", Help: "Pairs of a volume and a node to which the volume is attached.",
			Value: float64(attached),
		},
		{
			Name: "attached_total", Help: "Calls that attached a volume to a node.",
			Value: float64(b.attached), Counter: true,
		},
	}
}
