package beneath

import (
	"io/fs"
	"os"

	"github.com/causeway-csi/causeway/internal/dacl"
)

// setMode gives a directory an access control list: that of other users counts.
func setMode(dir *os.File, mode fs.FileMode) error {
	return dacl.Set(dir.Name(), mode&0o002 != 0)
}
