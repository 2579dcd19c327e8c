package main

import (
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// hostpathFlags are the flags of the backend hostpath.
type hostpathFlags struct {
	root  string
	init  bool
	adopt bool
	lost  uuids
}

// uuids are the value of a flag: UUIDs with commas between them.
type uuids []string

func (u *uuids) String() string { return strings.Join(*u, ",") }

func (u *uuids) Set(list string) error {
	*u = nil
	if list == "" {
		return nil
	}
	for _, s := range strings.Split(list, ",") {
		id, err := uuid.Parse(s)
		if err != nil {
			return fmt.Errorf("%q is no UUID: %w", s, err)
		}
		*u = append(*u, id.String())
	}
	return nil
}

func (h *hostpathFlags) kind() backend.Backend { return (*hostpath.Backend)(nil) }

func (h *hostpathFlags) flags(set *flag.FlagSet) {
	set.StringVar(&h.root, "root", "/var/lib/causeway", "hostpath: `directory` that holds the volumes; it must exist, and is best a filesystem of its own")
	set.BoolVar(&h.init, "init-root", false, "hostpath: take --root if it is empty and none was served here before; without it, an empty directory may be where a disk isn't mounted")
	set.BoolVar(&h.adopt, "adopt-root", false, "hostpath: serve --root even if it isn't the one that was served before; say it once, then take it away")
	set.Var(&h.lost, "lost-roots", "hostpath: `UUIDs` of roots that never come back, with commas between them: where one was served, the root that is there now is taken as at a first start")
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

func (h *hostpathFlags) open(o options, images mounter.Images, log *slog.Logger) (backend.Backend, error) {
	if h.adopt {
		log.Warn("--adopt-root is set: any root will be served, even an empty one where a disk isn't mounted: take it away after this start")
	}
	log.Info("opening the root", "root", h.root)
	return hostpath.New(hostpath.Config{
		Root: h.root, Node: o.nodeID, Release: release(), Init: h.init, Adopt: h.adopt, Lost: h.lost,
		Seen:   filepath.Join(o.stateDir, "root-identity"),
		Report: func(err error) { log.Error("a background task of the storage ended with a panic", about(err)...) },
		Warn: func(volume, reason, message string) {
			log.Warn("a copy of a volume has trouble", "volume", volume, "reason", reason, "message", message)
		},
		Images: images,
	})
}
