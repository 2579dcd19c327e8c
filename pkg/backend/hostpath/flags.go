package hostpath

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Flags are the fields of a Config that an operator sets.
type Flags struct {
	Root  string
	Init  bool
	Adopt bool
	Lost  []string
	Kinds []string

	WindowsImageClone bool
	TrimInterval      time.Duration
}

// minTrim is the shortest interval of trims: xfs and btrfs trim all of their free space each time.
const minTrim = time.Minute

// Declare declares the flags on set.
func (f *Flags) Declare(set *flag.FlagSet) {
	set.StringVar(&f.Root, "root", "/var/lib/causeway",
		"hostpath: `directory` that holds the volumes; it must exist, and is best a filesystem of its own")
	set.BoolVar(&f.Init, "init-root", false,
		"hostpath: take --root if it is empty and no root was served here before; without this flag, an empty "+
			"directory is rejected: it may be the mount point of a disk that is not mounted")
	set.BoolVar(&f.Adopt, "adopt-root", false,
		"hostpath: serve --root even if it is not the root that was served before; set it for one start, then remove "+
			"it")
	set.Var((*uuidList)(&f.Lost), "lost-roots",
		"hostpath: `UUIDs` of roots that never come back, with commas between them: if such a root was served last, "+
			"the present root is taken as at a first start")
	f.Kinds = []string{string(directory), string(image)}
	set.Var((*kindList)(&f.Kinds), "kinds",
		"hostpath: `kinds` of volumes that may be created, with commas between them; other volumes that exist are "+
			"served; the first kind is that of volumes without the parameter kind")
	set.BoolVar(&f.WindowsImageClone, "windows-image-clone", false,
		"hostpath: restore and clone images on Windows, although the copy has the disk and volume GUIDs of its "+
			"source: set it only after the checklist for Windows has shown that both attach on one node; an "+
			"error elsewhere")
	set.DurationVar(&f.TrimInterval, "trim-interval", 0,
		"hostpath: time between two trims of the mounted images, such as 168h: a trim gives the blocks of deleted "+
			"files back to the disk; 0 trims none; at least 1m; an error on Windows")
}

// uuidList is the value of a flag: UUIDs, separated by commas.
type uuidList []string

func (u *uuidList) String() string { return strings.Join(*u, ",") }

func (u *uuidList) Set(list string) error {
	*u = nil
	if list == "" {
		return nil
	}
	for _, s := range strings.Split(list, ",") {
		id, err := uuid.Parse(s)
		if err != nil {
			return fmt.Errorf("invalid UUID %q: %w", s, err)
		}
		*u = append(*u, id.String())
	}
	return nil
}

// kindList is the value of a flag: kinds of volumes, separated by commas.
type kindList []string

func (k *kindList) String() string { return strings.Join(*k, ",") }

func (k *kindList) Set(list string) error {
	*k = strings.Split(list, ",")
	_, err := parseKinds(*k)
	return err
}

// Check cleans Root, and returns an error for an interval of trims that is too short, and unless
// Root is an absolute path outside of the kubelet's directory and of the state directory, which are
// clean absolute paths: mounts and records inside the root would be lost with its disk. Check
// follows links as far as they exist.
func (f *Flags) Check(kubeletDir, stateDir string) error {
	if !filepath.IsAbs(f.Root) {
		return fmt.Errorf("invalid --root=%s: must be an absolute path", f.Root)
	}
	if f.TrimInterval > 0 && f.TrimInterval < minTrim {
		return fmt.Errorf("invalid --trim-interval=%s: must be 0, or at least %s", f.TrimInterval, minTrim)
	}
	f.Root = filepath.Clean(f.Root)
	for _, other := range []struct{ flag, dir string }{{"kubelet-dir", kubeletDir}, {"state-dir", stateDir}} {
		if nested(f.Root, other.dir) || nested(resolved(f.Root), resolved(other.dir)) {
			return fmt.Errorf("invalid --root=%s and --%s=%s: neither may be inside the other", f.Root, other.flag,
				other.dir)
		}
	}
	return nil
}

// resolved returns path without links, or path itself if it does not exist.
func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

// nested reports whether two clean paths are the same or one is below the other.
func nested(a, b string) bool {
	under := func(path, dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	}
	return under(a, b) || under(b, a)
}
