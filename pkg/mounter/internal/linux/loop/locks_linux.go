package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/keylock"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Locks are the locks of images, and of attached devices.
type Locks struct {
	// ImageLocks are held by calls that mount, unmount, change or freeze an image.
	ImageLocks keylock.Locks[tree.Backing]
	// FlushLocks are held to unmount, flush, freeze or trim an image. They are taken before
	// ImageLocks.
	FlushLocks keylock.Locks[tree.Backing]
	tree       *tree.Tree
	loops      *Devices
}

// NewLocks returns free locks for the images of mounts below a kubelet directory.
func NewLocks(tr *tree.Tree, loops *Devices) *Locks { return &Locks{tree: tr, loops: loops} }

// LockSource opens the source of m and takes the lock of its image. The source is the image itself,
// or a mount of the filesystem in the image. While LockSource waits for the lock, it holds nothing
// open: the source may be a mount that another call unmounts.
func (k *Locks) LockSource(ctx context.Context, m mounter.Mount) (src tree.Source, release func(), err error) {
	at, err := k.tree.StatSource(m.Source)
	if err != nil {
		return src, nil, err
	}
	var unlock func()
	switch m.Kind {
	case mounter.Image, mounter.Disk:
		unlock, err = k.ImageLocks.Lock(ctx, at.Backing())
	case mounter.BlockDevice:
		unlock, err = k.ImageLocks.Lock(ctx, at.DeviceKey())
	default:
		unlock, err = k.Lock(ctx, at, &k.ImageLocks)
	}
	if err != nil {
		return src, nil, err
	}
	src, err = k.tree.OpenSource(m.Source)
	if err == nil && (src.ID != at.ID || src.Device != at.Device) {
		src.Close()
		err = fmt.Errorf("%w: %s was replaced during the call", mounter.ErrBusy, m.Source)
	}
	if err != nil {
		unlock()
		return src, nil, err
	}
	return src, func() { src.Close(); unlock() }, nil
}

// LockAt takes the locks of the image that is mounted at path, as a filesystem or as a Disk.
// It takes no lock if path cannot be inspected: the caller's next step on path reports that error.
func (k *Locks) LockAt(ctx context.Context, path string) (release func(), err error) {
	p, err := k.tree.Open(path)
	if err != nil {
		return func() {}, nil
	}
	defer p.Close()
	at, err := p.Stat()
	if err == nil && !at.Mounted && at.Mode&unix.S_IFMT == unix.S_IFDIR {
		at, err = p.NodeState()
	}
	if err != nil || !at.Mounted {
		return func() {}, nil
	}
	return k.Lock(ctx, at, &k.FlushLocks, &k.ImageLocks)
}

// Lock takes the locks of an image: the backing file of the loop device of a mount. It takes
// none if the mount has no loop device.
func (k *Locks) Lock(ctx context.Context, at tree.State, all ...*keylock.Locks[tree.Backing]) (release func(),
	err error) {
	n, ok := k.loops.NumberOf(at)
	if !ok {
		return func() {}, nil
	}
	b, err := k.loops.FileOf(n)
	// On a dead disk the unmount continues without locks, so that the pod can end.
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) || tree.IsDead(err) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	var held []func()
	release = func() {
		for _, r := range held {
			r()
		}
	}
	for _, a := range all {
		r, err := a.Lock(ctx, b)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, r)
	}
	return release, nil
}
