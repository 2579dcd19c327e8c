// Command driver is the Causeway CSI driver.
package main

import (
	"path/filepath"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/backend/smb"
	"github.com/causeway-csi/causeway/pkg/csidriver"
)

// version is set by the build of images: -ldflags "-X main.version=v1.2.3".
var version = ""

func main() { csidriver.Main(program()) }

// program registers the backends. PersistentVolumes contain the names of drivers, so the names must
// not change.
func program() csidriver.Program {
	var flags hostpath.Flags
	var shares smb.Flags
	return csidriver.Program{
		Name:    "hostpath.csi.causeway.dev",
		Version: version,
		Backends: []csidriver.Backend{{
			Name:  "hostpath",
			Type:  (*hostpath.Backend)(nil),
			Flags: flags.Declare,
			Check: func(c csidriver.Config) error { return flags.Check(c.KubeletDir, c.StateDir) },
			Open:  func(c csidriver.Config) (backend.Backend, error) { return openHostpath(flags, c) },
			Describe: func(_ csidriver.Config, id string) (csidriver.Description, error) {
				path, record, err := hostpath.Describe(flags.Root, id)
				return csidriver.Description{Path: path, Record: record}, err
			},
			Helpers: hostpath.HelperTasks(),
		}, {
			Name:       "smb",
			DriverName: "smb.csi.causeway.dev",
			Type:       (*smb.Backend)(nil),
			Flags:      shares.Declare,
			Check:      func(c csidriver.Config) error { return shares.Check(c.Controller) },
			Open:       func(c csidriver.Config) (backend.Backend, error) { return openSMB(shares, c) },
		}},
	}
}

// openSMB opens the file of shares of the backend smb.
func openSMB(f smb.Flags, c csidriver.Config) (backend.Backend, error) {
	return smb.New(smb.Config{
		Shares: f.Shares, Krb5Conf: f.Krb5Conf, Krb5Caches: f.Krb5Caches, Images: c.Images,
		Report: func(err error) { c.Log.Error("a background task of the storage failed", guard.Attributes(err)...) },
	})
}

// openHostpath opens the root of the backend hostpath.
func openHostpath(f hostpath.Flags, c csidriver.Config) (backend.Backend, error) {
	if f.Adopt {
		c.Log.Warn("--adopt-root is set: the driver serves any root, even the empty mount point of a disk that is " +
			"not mounted: remove the flag after this start")
	}
	c.Log.Info("opening the root", "root", f.Root)
	return hostpath.New(hostpath.Config{
		Root: f.Root, Node: c.NodeID, Release: c.Version, Init: f.Init, Adopt: f.Adopt, Lost: f.Lost,
		WindowsImageClone: f.WindowsImageClone, TrimInterval: f.TrimInterval, Kinds: f.Kinds,
		RootRecord: filepath.Join(c.StateDir, "root-identity"),
		Report: func(err error) {
			c.Log.Error("a background task of the storage ended with a panic", guard.Attributes(err)...)
		},
		Warn: func(volume, reason, message string) {
			c.Log.Warn("a volume has a problem", "volume", volume, "reason", reason, "message", message)
		},
		Images: c.Images,
	})
}
