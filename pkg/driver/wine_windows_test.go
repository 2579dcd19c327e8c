//go:build winetest

package driver

import (
	"path/filepath"

	_ "github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

var _ = useWine()

// useWine replaces the things that Wine 8 lacks. The links are those of the driver for Windows.
func useWine() bool {
	overTCP = true
	newFakeWindows = func(dir, frozen string) (mounter.Host, error) {
		// The Host keeps the directory of its records open, which could not be removed with the
		// rest.
		return host.New(dir, filepath.Join(filepath.Dir(dir)+"-records", filepath.Base(frozen)))
	}
	return true
}
