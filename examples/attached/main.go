//go:build linux || windows

// Command attached is a CSI driver for disks that are attached to nodes, as those of most clouds
// and storage networks. The program has three parts: storage.go translates between CSI and a cloud,
// cloud.go plays the cloud with files of a directory, and loop.go plays the cable: an attached disk
// is a loop device. An author replaces the last two by a cloud, which is an interface in
// storage.go, and by host.FindDevice, as finder_windows.go has it: a Windows node has the disks
// of its machine, and its controller runs on Linux. EDIT marks the places in storage.go that depend
// on the cloud.
package main

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/csidriver"
)

func main() {
	csidriver.Main(program())
}

func program() csidriver.Program {
	o := &options{}
	return csidriver.Program{Name: "attached.csi.example.com", Backends: []csidriver.Backend{{
		Name: "attached", Type: (*storage)(nil), Flags: o.flags, Check: o.check, Open: o.open,
	}}}
}

// options are the flags.
type options struct {
	dir      string
	machines string
	limit    int64
}

func (o *options) flags(set *flag.FlagSet) {
	set.StringVar(&o.dir, "cloud-dir", "/var/lib/attached",
		"attached: `directory` of the cloud, which the controller alone uses, on a filesystem with reflinks; it must "+
			"exist")
	set.StringVar(&o.machines, "cloud-nodes", "",
		"attached: `names` of the nodes that the cloud knows, with commas between them; empty: any")
	set.Int64Var(&o.limit, "attach-limit", 16, "attached: `number` of disks that a node takes; 0: any")
}

func (o *options) check(c csidriver.Config) error {
	switch {
	case c.Controller && !filepath.IsAbs(o.dir): // a node has no cloud, and on Windows another form of paths
		return fmt.Errorf("invalid --cloud-dir %q: must be an absolute path", o.dir)
	case o.limit < 0:
		return fmt.Errorf("invalid --attach-limit %d: must not be negative", o.limit)
	case o.machines != "" && slices.Contains(strings.Split(o.machines, ","), ""):
		return errors.New("invalid --cloud-nodes: a name is empty")
	}
	return nil
}

func (o *options) open(c csidriver.Config) (backend.Backend, error) {
	s := &storage{node: c.NodeID, limit: o.limit, find: newFinder(c.NodeID)}
	// a node has its disks, and no cloud
	if !c.Controller {
		return s, nil
	}
	var nodes []string
	if o.machines != "" {
		nodes = strings.Split(o.machines, ",")
	}
	var err error
	if s.cloud, err = openCloud(o.dir, nodes, o.limit, c.Log); err != nil {
		return nil, fmt.Errorf("--cloud-dir: %w", err)
	}
	return s, nil
}
