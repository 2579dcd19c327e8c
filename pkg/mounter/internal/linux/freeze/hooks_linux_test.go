package freeze

import (
	"os"
)

// newWindow returns a window whose filesystems are all frozen.
func newWindow(paths []string, mounts ...*os.File) *window {
	w := &window{paths: paths, mounts: mounts}
	for i := range mounts {
		w.frozen = append(w.frozen, i)
	}
	return w
}
