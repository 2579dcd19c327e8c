package linuxtest

import (
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/loop"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Hold opens the target of m at path, as Mount does.
func (b *Bench) Hold(m mounter.Mount, path string) tree.Target {
	b.T.Helper()
	p, err := b.Host.(*linux.Host).Tree.Open(path)
	if err != nil {
		b.T.Fatal(err)
	}
	mode := uint16(unix.S_IFDIR)
	switch m.Kind {
	case mounter.Device:
		mode = unix.S_IFREG
	case mounter.Disk:
		mode = unix.S_IFREG
		d, _, err := p.PrepareNode()
		if err != nil {
			b.T.Fatal(err)
		}
		p.Close()
		p = d
	}
	held, _, err := p.Prepare(mode, nil)
	if err != nil {
		b.T.Fatal(err)
	}
	return held
}

// Recipe returns the recipe for m.
func (b *Bench) Recipe(m mounter.Mount) (r tree.Recipe, release func()) {
	b.T.Helper()
	l := b.Host.(*linux.Host)
	attr, err := tree.Attributes(m)
	if err != nil {
		b.T.Fatal(err)
	}
	src, err := l.Tree.OpenSource(m.Source)
	if err != nil {
		b.T.Fatal(err)
	}
	switch m.Kind {
	case mounter.Directory:
		return tree.DirectoryRecipe(src, attr, attr.Flags|unix.ST_RELATIME), src.Close
	case mounter.Device:
		return tree.DeviceNodeRecipe(src.FD, src.Device), src.Close
	}
	defer src.Close()
	file, err := src.OpenImage()
	if err != nil {
		b.T.Fatal(err)
	}
	dev, _, err := l.Loops.Attach(file, loop.OptionsOf(m))
	if err != nil {
		b.T.Fatal(err)
	}
	at, err := tree.StatFD(int(dev.Fd()))
	if err != nil {
		b.T.Fatal(err)
	}
	if m.Kind == mounter.Disk {
		r = tree.DeviceNodeRecipe(int(dev.Fd()), at.Device)
	} else {
		r = tree.FilesystemRecipe(dev.Name(), m.FSType, attr.Fresh(m.FSType, m.Options))
	}
	return r, func() { dev.Close(); file.Close() }
}
