package main

import (
	"flag"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// backends returns what --backend may be. It is the only place that knows the names of backends; each has a file of its
// own with its flags.
func backends() map[string]storage {
	return map[string]storage{
		"hostpath": &hostpathFlags{},
	}
}

// storage is a backend on the command line.
type storage interface {
	// kind returns a nil pointer of the backend's type: what the backend can do is read off that, where none is open.
	kind() backend.Backend

	// flags declares the backend's flags on set. They have usage that starts with its name, and are there whichever
	// backend is chosen.
	flags(set *flag.FlagSet)

	// check returns an error for values that can never be right, and makes paths clean. real is what a path stands
	// for. It is called once before anything is touched, when that isn't known yet, and once before open.
	check(o options, real func(path string) string) error

	// open returns the backend. If that is an io.Closer, it is closed when the driver ends.
	open(o options, images mounter.Images, log *slog.Logger) (backend.Backend, error)
}

// backendNames returns the names of all backends, for a person.
func (o *options) backendNames() string {
	return strings.Join(slices.Sorted(maps.Keys(o.backends)), ", ")
}
