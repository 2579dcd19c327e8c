package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/causeway-csi/causeway/internal/beneath"
	"github.com/causeway-csi/causeway/internal/crashpoint"
	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
)

// A data disk that failed to mount looks like an empty root. The driver would acknowledge deletes
// of volumes that it does not see, and make new volumes on the wrong disk. So a root has an
// identity, a file outside the root remembers the root that was served last, and an operator must
// confirm the first start.

// IdentityFile is the name of the file in the root with its identity.
const IdentityFile = "identity.json"

var identityFormat = record.Format{Version: 1}

// identity is the content of identity.json, and of the file that remembers the root.
type identity struct {
	UUID    string    `json:"uuid"`
	Node    string    `json:"node"`
	Release string    `json:"release"` // release that made it
	Created time.Time `json:"created"`
}

// identify verifies that root is the root that was served last, or that no root was served before.
// With cfg.Adopt, identify skips this check. Then it records root as the root that was served last.
func identify(root *beneath.Dir, cfg Config) error {
	memory, err := beneath.Open(filepath.Dir(cfg.RootRecord))
	if err != nil {
		return err
	}
	defer memory.Close()
	has, err := readIdentity(root, IdentityFile)
	if err != nil {
		return fmt.Errorf("%s of the root: %w", IdentityFile, err)
	}
	seen, err := readIdentity(memory, filepath.Base(cfg.RootRecord))
	if err != nil {
		return fmt.Errorf("%s: %w", cfg.RootRecord, err)
	}

	if seen != nil && slices.Contains(cfg.Lost, seen.UUID) {
		seen = nil
	}
	switch doubt := compare(root, has, seen, cfg); {
	case cfg.Adopt:
	case doubt != nil:
		return doubt
	case has == nil && !cfg.Init:
		return fmt.Errorf("the root %s is empty and no root was served here before: if its disk is mounted, start "+
			"the driver with --init-root", cfg.Root)
	}
	if has == nil {
		has = &identity{UUID: uuid.NewString(), Release: cfg.Release, Created: time.Now().UTC().Truncate(time.Second)}
	}
	if has.Node != cfg.Node {
		if has.Node != "" { // the previous node may list the old UUID as lost, which must not concern this node
			has.UUID = uuid.NewString()
		}
		has.Node = cfg.Node
		if err := identityFormat.Replace(root, IdentityFile, has); err != nil {
			return err
		}
	}
	crashpoint.Reached("identity:made")
	if seen == nil || *seen != *has {
		return identityFormat.Replace(memory, filepath.Base(cfg.RootRecord), has)
	}
	return nil
}

// compare returns the reason for which an operator should examine root before it is served.
func compare(root *beneath.Dir, has, seen *identity, cfg Config) error {
	switch {
	case has == nil:
		if err := unused(root, seen, cfg); err != nil || seen == nil {
			return err
		}
		return fmt.Errorf("the root %s has no %s, but %s was served here: is its disk mounted? If it is lost for "+
			"good: --lost-roots=%[3]s, lostRoots in the chart", cfg.Root, IdentityFile, seen.UUID)
	case slices.Contains(cfg.Lost, has.UUID): // otherwise its next loss would stay unnoticed
		return fmt.Errorf("the root %s is %s, which --lost-roots lists as lost: remove it from the list",
			cfg.Root, has.UUID)
	case has.Node != cfg.Node:
		return fmt.Errorf("the root %s belongs to node %q, this is %q: to serve the root nevertheless, start the "+
			"driver once with --adopt-root", cfg.Root, has.Node, cfg.Node)
	case seen != nil && seen.UUID != has.UUID:
		return fmt.Errorf("the root %s is %s, but %s was served here: is the right disk mounted? If that root is "+
			"lost for good: --lost-roots=%[3]s, lostRoots in the chart", cfg.Root, has.UUID, seen.UUID)
	}
	return nil
}

// unused returns an error if root has an entry other than those of a new filesystem or of an
// interrupted first start. The entries may be volumes whose identity was removed: seen is then
// theirs.
func unused(root *beneath.Dir, seen *identity, cfg Config) error {
	names, err := root.Names(".")
	if err != nil {
		return err
	}
	for _, n := range slices.Sorted(slices.Values(names)) {
		if n == "lost+found" || n == IdentityFile+".new" || n == lockFile {
			continue
		}
		reason := fmt.Sprintf("the root %s has no %s and is not empty: it contains %.64q", cfg.Root, IdentityFile, n)
		if seen != nil {
			return fmt.Errorf("%s, and %s was served here: is its disk mounted? If these are its volumes, delete "+
				"nothing, and copy %s to %s", reason, seen.UUID, cfg.RootRecord, IdentityFile)
		}
		return fmt.Errorf("%s. If these are volumes of this driver, delete nothing: to serve the root, start the "+
			"driver once with --adopt-root", reason)
	}
	return nil
}

// check returns an error for an invalid identity.
func (i *identity) check() error {
	if id, err := uuid.Parse(i.UUID); err != nil || id.String() != i.UUID {
		return fmt.Errorf("%w: invalid uuid %.64q", record.ErrDamaged, i.UUID)
	}
	return nil
}

// readIdentity returns nil if the file does not exist.
func readIdentity(dir *beneath.Dir, name string) (*identity, error) {
	var i identity
	switch err := identityFormat.Read(dir, name, &i); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := i.check(); err != nil {
		return nil, err
	}
	return &i, nil
}
