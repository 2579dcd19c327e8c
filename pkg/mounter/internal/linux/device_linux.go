package linux

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// mountDevice bind mounts the node of a block device on the file at p. Read-only is a property of
// the device, and so of all its targets.
func (h *Host) mountDevice(ctx context.Context, m mounter.Mount, src tree.Source, p tree.Handle,
	_ tree.AttributeSet) error {
	if src.Kind() != unix.S_IFBLK {
		return fmt.Errorf("mount %s at %s: the source is not a block device", m.Source, p.Path)
	}
	dev, err := tree.OpenDevice(src.FD, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	t, done, err := p.Prepare(unix.S_IFREG, func(at tree.State, _ int) (bool, error) {
		readOnly, err := tree.IsReadOnly(dev)
		if err == nil && readOnly != m.ReadOnly {
			err = fmt.Errorf("is mounted read-only: %v", readOnly)
		}
		return at.Kind() == unix.S_IFBLK && at.Device == src.Device, err
	})
	if done || err != nil {
		return err
	}
	defer t.Close()
	if err = h.setReadOnly(ctx, dev, m, p); err == nil {
		r := tree.DeviceNodeRecipe(src.FD, src.Device)
		r.Record = func(int) error { return errors.Join(tree.MarkTarget(t.FD), h.Tree.Remember(p.Path, src)) }
		err = h.Tree.Attach(t, r)
	}
	return t.Failed(m, err)
}

// setReadOnly makes the device read-only or writable, as m requests. Errors: ErrReadOnly if the
// device has another target that needs the opposite, or cannot be changed.
func (h *Host) setReadOnly(ctx context.Context, dev *os.File, m mounter.Mount, p tree.Handle) error {
	readOnly, err := tree.IsReadOnly(dev)
	if err != nil || readOnly == m.ReadOnly {
		return err
	}
	others, err := h.Tree.OtherTargets(ctx, m.Source)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other != p.Path {
			return fmt.Errorf("%w: %s must be read-only, or writable, at all its paths: it is also mounted at %s",
				mounter.ErrReadOnly, dev.Name(), other)
		}
	}
	if err := tree.SetDeviceReadOnly(dev, m.ReadOnly); err != nil {
		return fmt.Errorf("%w: %w", mounter.ErrReadOnly, err)
	}
	if now, err := tree.IsReadOnly(dev); err != nil || now == m.ReadOnly {
		return err
	}
	return fmt.Errorf("%w: %s was attached read-only", mounter.ErrReadOnly, dev.Name())
}
