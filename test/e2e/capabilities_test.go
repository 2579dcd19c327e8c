package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/backend/smb"
	"github.com/causeway-csi/causeway/pkg/driver"
)

// declared has the fields of a driver file that can be compared with the driver's capabilities.
type declared struct {
	DriverInfo struct {
		Name         string
		Capabilities map[string]bool
		TopologyKeys []string
	}
	VolumeAttributesClass, SnapshotClass, GroupSnapshotClass map[string]any
	InlineVolumes                                            []any
}

// exceptions are capabilities that a driver has and its configuration does not declare, by
// "configuration capability", with the reason.
var exceptions = map[string]string{
	"hostpath-directory block":            "a directory is no device",
	"hostpath-directory groupSnapshot":    "images only: docs/explanation/snapshots.md",
	"hostpath-directory nodeExpansion":    "a directory has no filesystem to grow on the node",
	"hostpath-directory snapshotMetadata": "its specs want the external-snapshot-metadata sidecar",
	"hostpath-image snapshotMetadata":     "its specs want the external-snapshot-metadata sidecar",
	"smb block":                           "a directory is no device",
	"smb nodeExpansion":                   "a share has no filesystem to grow on the node",
}

// attached has the interfaces of the backend of examples/attached, whose main package cannot be
// imported. TestAttachedHasTheseInterfaces compares the two.
type attached struct {
	backend.Backend
	backend.Lister
	backend.Expander
	backend.Snapshotter
	backend.Cloner
	backend.Attacher
	backend.Limiter
}

// TestAttachedHasTheseInterfaces reads the methods of the example's backend. A capability is an
// interface of pkg/backend.
func TestAttachedHasTheseInterfaces(t *testing.T) {
	const dir = "../../examples/attached"
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s, %v", dir, err)
	}
	methods := map[string]bool{}
	for _, file := range files {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range source.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok && star.X.(*ast.Ident).Name == "storage" {
				methods[f.Name.Name] = true
			}
		}
	}
	for _, i := range []reflect.Type{
		reflect.TypeFor[backend.Backend](), reflect.TypeFor[backend.Lister](), reflect.TypeFor[backend.CapacityReporter](), reflect.TypeFor[backend.Expander](),
		reflect.TypeFor[backend.Modifier](), reflect.TypeFor[backend.NodeLocal](), reflect.TypeFor[backend.Inliner](), reflect.TypeFor[backend.Attacher](),
		reflect.TypeFor[backend.Limiter](), reflect.TypeFor[backend.Snapshotter](), reflect.TypeFor[backend.Cloner](),
		reflect.TypeFor[backend.GroupSnapshotter](), reflect.TypeFor[backend.Differ](),
	} {
		has := true
		for n := range i.NumMethod() {
			has = has && methods[i.Method(n).Name]
		}
		if said := reflect.TypeFor[attached]().Implements(i); said != has {
			t.Errorf("examples/attached has %s: %v, the type attached here: %v", i, has, said)
		}
	}
}

func TestTheDeclarationsAreTheDrivers(t *testing.T) {
	hostpaths := (*hostpath.Backend)(nil) // its type says it all
	for dir, b := range map[string]backend.Backend{"hostpath-directory": hostpaths, "hostpath-image": hostpaths,
		"attached": attached{}, "smb": (*smb.Backend)(nil)} {
		compareDeclaration(t, filepath.Join("configs", dir), b)
	}
	if n := len(configurations(t)); n != 4 {
		t.Errorf("there are %d configurations, of which 4 are compared with a driver", n)
	}
}

// compareDeclaration compares the configuration in dir with the capabilities of its driver.
func compareDeclaration(t *testing.T, dir string, b backend.Backend) {
	t.Helper()
	name := filepath.Base(dir)
	data, err := os.ReadFile(filepath.Join(dir, driverFile))
	if err != nil {
		t.Fatal(err)
	}
	var d declared
	if err := yaml.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	has := capabilities(b)
	keys := []string{driver.TopologyKey(d.DriverInfo.Name), driver.SystemKey(d.DriverInfo.Name)}
	if has["topology"] && !slices.Equal(d.DriverInfo.TopologyKeys, keys) {
		t.Errorf("%s: the topology keys are %q, the driver's %q", name, d.DriverInfo.TopologyKeys, keys)
	}
	for capability := range d.DriverInfo.Capabilities {
		if _, known := has[capability]; !known {
			t.Errorf("%s: nothing here says whether the driver has %s", name, capability)
		}
	}
	for capability, has := range has {
		key := name + " " + capability
		got := d.DriverInfo.Capabilities[capability]
		switch _, excepted := exceptions[key]; {
		case excepted && got:
			t.Errorf("%s: it is declared, and an exception says that it is not", key)
		case excepted && !has:
			t.Errorf("%s: it is an exception, and the driver has not got it", key)
		case !excepted && got != has:
			t.Errorf("%s: declared: %v; the driver has it: %v", key, got, has)
		}
	}
	_, modifies := b.(backend.Modifier)
	_, inline := b.(backend.Inliner)
	for what, is := range map[string][2]bool{
		"VolumeAttributesClass": {len(d.VolumeAttributesClass) > 0, modifies},
		"SnapshotClass":         {len(d.SnapshotClass) > 0, has["snapshotDataSource"]},
		"InlineVolumes":         {len(d.InlineVolumes) > 0, inline},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: %s is there: %v; the driver has it: %v", name, what, is[0], is[1])
		}
	}
}

// capabilities returns the capabilities of the driver of a backend, in the words of the suite.
func capabilities(b backend.Backend) map[string]bool {
	controller := func(want csi.ControllerServiceCapability_RPC_Type) bool {
		return slices.ContainsFunc(driver.ControllerCapabilities(b).GetCapabilities(),
			func(c *csi.ControllerServiceCapability) bool {
				return c.GetRpc().GetType() == want
			})
	}
	plugin := func(want csi.PluginCapability_Service_Type) bool {
		return slices.ContainsFunc(driver.PluginCapabilities(b).GetCapabilities(), func(c *csi.PluginCapability) bool {
			return c.GetService() != nil && c.GetService().GetType() == want
		})
	}
	node := func(want csi.NodeServiceCapability_RPC_Type) bool {
		return slices.ContainsFunc(driver.NodeCapabilities(b).GetCapabilities(),
			func(c *csi.NodeServiceCapability) bool {
				return c.GetRpc().GetType() == want
			})
	}
	online := slices.ContainsFunc(driver.PluginCapabilities(b).GetCapabilities(), func(c *csi.PluginCapability) bool {
		return c.GetVolumeExpansion().GetType() == csi.PluginCapability_VolumeExpansion_ONLINE
	})
	_, limits := b.(backend.Limiter)
	_, attaches := b.(backend.Attacher)
	_, local := b.(backend.NodeLocal)
	expands := controller(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	return map[string]bool{
		"capacity":            controller(csi.ControllerServiceCapability_RPC_GET_CAPACITY),
		"controllerExpansion": expands,
		"offlineExpansion":    expands,
		"onlineExpansion":     expands && online,
		"nodeExpansion":       node(csi.NodeServiceCapability_RPC_EXPAND_VOLUME),
		"pvcDataSource":       controller(csi.ControllerServiceCapability_RPC_CLONE_VOLUME),
		"readWriteOncePod":    controller(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
		"snapshotDataSource":  controller(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
		"groupSnapshot":       plugin(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE),
		"snapshotMetadata":    plugin(csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE),
		"topology":            plugin(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		"volumeLimits":        limits,
		"volumeMountGroup":    node(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP),
		// CSI has no word for these. Several nodes read an attached disk. They write to it as a
		// block device only, and RWX is for filesystems, too.
		"capReadOnlyMany": !local, "RWX": !local && !attaches,
		// CSI has no word for these either. They are false for a driver for many nodes, whose
		// CSIDriver has no mount option for labels; the last is a missing capability.
		"singleNodeVolume": false, "seLinuxMount": false, "FSResizeFromSourceNotSupported": false,
		// Nor for these, which are purposes of the volumes.
		"persistence": true, "block": true, "exec": true, "fsGroup": true, "multipods": true, "multiplePVsSameID": true,
	}
}
