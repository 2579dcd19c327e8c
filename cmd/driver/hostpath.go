package main

import (
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// hostpathFlags are the flags of the backend hostpath.
type hostpathFlags struct {
	root  string
	init  bool
	adopt bool
	on    string // nodes, with commas between them, on which adopt is meant
}

func (h *hostpathFlags) kind() backend.Backend { return (*hostpath.Backend)(nil) }

func (h *hostpathFlags) flags(set *flag.FlagSet) {
	set.StringVar(&h.root, "root", "/var/lib/causeway", "hostpath: `directory` that holds the volumes; it must exist, and is best a filesystem of its own")
	set.BoolVar(&h.init, "init-root", false, "hostpath: take --root if it is empty and none was served here before; without it, an empty directory may be where a disk isn't mounted")
	set.BoolVar(&h.adopt, "adopt-root", false, "hostpath: serve --root even if it isn't the one that was served before; say it once, then take it away")
	set.StringVar(&h.on, "adopt-root-on", "", "hostpath: `nodes` with commas between them, by their --node-id, on which --adopt-root is meant, where all have the same flags")
}

// adopts reports whether any root will be served on a node.
func (h *hostpathFlags) adopts(node string) bool {
	return h.adopt || slices.Contains(strings.Split(h.on, ","), node)
}

// check makes sure that nothing is mounted, or remembered, in the root: it would go with its disk.
func (h *hostpathFlags) check(o options, real func(path string) string) error {
	if err := cleanPath("root", &h.root); err != nil {
		return err
	}
	if nested(real(h.root), real(o.kubeletDir)) {
		return fmt.Errorf("--root=%s and --kubelet-dir=%s: one is in the other", h.root, o.kubeletDir)
	}
	if nested(real(h.root), real(o.stateDir)) {
		return fmt.Errorf("--root=%s and --state-dir=%s: one is in the other", h.root, o.stateDir)
	}
	return nil
}

func (h *hostpathFlags) open(o options, m mounter.Mounter, log *slog.Logger) (backend.Backend, error) {
	adopt := h.adopts(o.nodeID)
	if adopt {
		log.Warn("--adopt-root is set, or this node in --adopt-root-on: any root will be served, even an empty one where a disk isn't mounted: take it away after this start")
	}
	log.Info("opening the root", "root", h.root)
	return hostpath.New(hostpath.Config{
		Root: h.root, Node: o.nodeID, Release: release(), Init: h.init, Adopt: adopt,
		Seen:  filepath.Join(o.stateDir, "root-identity"),
		Users: m.Users, Failing: m.Failing, Format: m.Format, NewUUID: m.NewUUID, Freeze: m.Freeze, Tune: m.Tune,
	})
}
