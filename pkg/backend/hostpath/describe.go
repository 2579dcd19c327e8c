package hostpath

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath/internal/store"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// maxRecord is the largest record that Describe reads, in bytes.
const maxRecord = 1 << 20

// Describe returns the path of a volume in a root, and its record, for an operator. It changes
// nothing, and may run beside the driver that serves the root. The path is returned with an error,
// too, unless the ID is none of this backend. Errors: ErrNotFound, and those of the filesystem.
func Describe(root, id string) (path string, record json.RawMessage, err error) {
	if parsed, err := volumeid.Parse(id); err != nil || parsed.Kind != volumeid.Volume {
		return "", nil, fmt.Errorf("%w: volume %.128q", backend.ErrNotFound, id)
	}
	path = filepath.Join(root, store.Volumes, id)
	dir, err := os.OpenRoot(root)
	if err != nil {
		return path, nil, err
	}
	defer dir.Close()
	name := filepath.Join(store.Volumes, id, store.Record)
	switch info, err := dir.Lstat(name); {
	case os.IsNotExist(err):
		return path, nil, fmt.Errorf("%w: volume %q", backend.ErrNotFound, id)
	case err != nil:
		return path, nil, err
	case !info.Mode().IsRegular():
		return path, nil, fmt.Errorf("unexpected file type of %s: %s, must be a regular file", name, info.Mode().Type())
	}
	f, err := dir.Open(name)
	if err != nil {
		return path, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return path, nil, err
	}
	if !json.Valid(data) {
		return path, nil, fmt.Errorf("%s is no JSON: %.1024q", name, data)
	}
	return path, data, nil
}
