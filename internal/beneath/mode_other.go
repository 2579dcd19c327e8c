//go:build !windows

package beneath

import (
	"io/fs"
	"os"
)

func setMode(dir *os.File, mode fs.FileMode) error { return dir.Chmod(mode) }
