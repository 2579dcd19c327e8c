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
	"regexp"
	"slices"
	"sync"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// What a Backend is. It isn't NodeLocal, as that is storage which needs no attaching.
var (
	_ backend.Backend  = (*Backend)(nil)
	_ backend.Lister   = (*Backend)(nil)
	_ backend.Sizer    = (*Backend)(nil)
	_ backend.Expander = (*Backend)(nil)
	_ backend.Inliner  = (*Backend)(nil)
	_ backend.Attacher = (*Backend)(nil)
	_ backend.Limiter  = (*Backend)(nil)
	_ backend.Prober   = (*Backend)(nil)
	_ backend.Doctor   = (*Backend)(nil)
	_ backend.Meter    = (*Backend)(nil)
)

// Config is what a Backend needs.
type Config struct {
	Dir   string   // an existing directory, for what is mounted
	Size  int64    // bytes of all volumes together
	Nodes []string // IDs of the nodes that volumes can be attached to
	Limit int64    // how many volumes one node takes; 0 is any number
}

// Backend is the storage. The zero value is not usable: see New.
type Backend struct {
	cfg Config

	mu       sync.Mutex
	volumes  map[string]*volume // by ID; an inline one by the kubelet's handle
	promised int64              // bytes of all volumes
	attached int                // how often a volume was attached
}

// New returns storage without volumes.
func New(cfg Config) *Backend {
	return &Backend{cfg: cfg, volumes: map[string]*volume{}}
}

// volume is what there is of a volume.
type volume struct {
	id     string
	size   int64
	data   data
	inline bool
	nodes  map[string]attachment // by the node's ID
}

// public returns v as others see it. They may keep it, so it shares nothing with v.
func (v *volume) public() backend.Volume {
	return backend.Volume{ID: v.id, Size: v.size, Inline: v.inline, Nodes: slices.Sorted(maps.Keys(v.nodes))}
}

// find returns the volume with this ID. b.mu must be held.
func (b *Backend) find(id string) (*volume, error) {
	v, ok := b.volumes[id]
	if !ok {
		return nil, fmt.Errorf("%w: volume %.128q", backend.ErrNotFound, id)
	}
	return v, nil
}

// Create makes a volume. Its ID is a digest of its name, so that the same name finds the same volume.
func (b *Backend) Create(ctx context.Context, o backend.CreateOptions) (backend.Volume, error) {
	sum := sha256.Sum256([]byte(o.Name))
	return b.create(ctx, "mem-"+hex.EncodeToString(sum[:]), false, o)
}

// inlineHandle is how the kubelet names inline volumes. No ID from Create looks like that.
var inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// CreateInline makes a volume for the life of one pod.
func (b *Backend) CreateInline(ctx context.Context, handle string, o backend.CreateOptions) (backend.Volume, error) {
	if !inlineHandle.MatchString(handle) {
		return backend.Volume{}, fmt.Errorf("%w: an inline volume's handle is csi- and 64 hexadecimal digits", backend.ErrInvalid)
	}
	return b.create(ctx, handle, true, o)
}

// defaultSize is the size in bytes of a volume for which none is asked.
const defaultSize = 1 << 30

func (b *Backend) create(ctx context.Context, id string, inline bool, o backend.CreateOptions) (backend.Volume, error) {
	block, err := check(o)
	if err != nil {
		return backend.Volume{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return backend.Volume{}, err
	}
	if v, ok := b.volumes[id]; ok {
		if v.size < o.Required || (o.Limit > 0 && v.size > o.Limit) || v.data.block != block {
			return backend.Volume{}, fmt.Errorf("%w: it has %d bytes and is a block device: %v", backend.ErrExists, v.size, v.data.block)
		}
		return v.public(), nil
	}
	size := cmp.Or(o.Required, min(defaultSize, cmp.Or(o.Limit, defaultSize)))
	if room := b.cfg.Size - b.promised; size > room {
		return backend.Volume{}, fmt.Errorf("%w: %d bytes are wanted, %d are left", backend.ErrExhausted, size, room)
	}
	d, err := b.newData(block, size)
	if err != nil {
		return backend.Volume{}, err
	}
	v := &volume{id: id, size: size, data: d, inline: inline, nodes: map[string]attachment{}}
	b.volumes[id] = v
	b.promised += size
	return v.public(), nil
}

// Expand grows a volume. The node has to grow the device of a disk that it has.
func (b *Backend) Expand(_ context.Context, id string, o backend.ExpandOptions) (size int64, node bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.find(id)
	if err == nil && v.inline {
		err = fmt.Errorf("%w: volume %.128q is a pod's inline volume", backend.ErrNotFound, id)
	}
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
	v.data.remove()
	delete(b.volumes, id)
	b.promised -= v.size
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
	readOnly, err := v.attachedReadOnly(a.Attachment)
	if err != nil {
		return mounter.Mount{}, err
	}
	m := mounter.Mount{Kind: v.data.kind(), Source: v.data.path, Options: a.Options, ReadOnly: a.ReadOnly || readOnly}
	if m.Kind == mounter.Disk {
		m.Sector = sector
	}
	return m, nil
}

// check returns an error for a volume that there can't be, and whether it is a block device. This backend has no
// parameters.
func check(o backend.CreateOptions) (block bool, err error) {
	for _, key := range slices.Sorted(maps.Keys(o.Parameters)) {
		return false, fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
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
func (b *Backend) List(_ context.Context, after string, limit int) (page []backend.Volume, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.after(after) {
		if len(page) == limit {
			return page, true, nil
		}
		page = append(page, v.public())
	}
	return page, false, nil
}

// after returns the volumes with IDs above an ID, in order, without the inline ones. b.mu must be held.
func (b *Backend) after(id string) (volumes []*volume) {
	for _, other := range slices.Sorted(maps.Keys(b.volumes)) {
		if v := b.volumes[other]; other > id && !v.inline {
			volumes = append(volumes, v)
		}
	}
	return volumes
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
func (b *Backend) ListHealth(_ context.Context, after string, limit int) (sick []backend.Diagnosis, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.after(after) {
		conditions := v.health()
		switch {
		case len(conditions) == 0:
			continue
		case len(sick) == limit:
			return sick, true, nil
		}
		sick = append(sick, backend.Diagnosis{ID: v.id, Conditions: conditions})
	}
	return sick, false, nil
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
	persistent, attached := b.after(""), 0
	for _, v := range persistent {
		attached += len(v.nodes)
	}
	return []backend.Metric{
		{Name: "volumes", Help: "Volumes made by CreateVolume.", Value: float64(len(persistent))},
		{Name: "inline_volumes", Help: "Inline ephemeral volumes.", Value: float64(len(b.volumes) - len(persistent))},
		{Name: "promised_bytes", Help: "Sum of the sizes of all volumes.", Value: float64(b.promised)},
		{Name: "attachments", Help: "Pairs of a volume and a node that it is attached to.", Value: float64(attached)},
		{Name: "attached_total", Help: "How often a volume was attached to a node.", Value: float64(b.attached), Counter: true},
	}
}
