// Package definition reads driver files strictly. Kubernetes' own reader ignores keys, capabilities and timeouts that it doesn't
// know: one misspelt word, and the specs for it aren't there, which nobody sees.
package definition

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kubernetes/test/e2e/framework"
	storageframework "k8s.io/kubernetes/test/e2e/storage/framework"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Definition is what a driver file may say: the type that k8s.io/kubernetes/test/e2e/storage/external has and doesn't export. A
// test compares the two.
type Definition struct {
	DriverInfo            storageframework.DriverInfo
	StorageClass          class
	VolumeAttributesClass attributesClass
	SnapshotClass         class
	GroupSnapshotClass    class
	InlineVolumes         []inlineVolume
	ClientNodeName        string
	NodeSelectors         map[string]string
	Timeouts              map[string]string
}

// class is where a class comes from: one of the three.
type class struct {
	FromName              bool
	FromFile              string
	FromExistingClassName string
}

type attributesClass struct {
	FromFile              string
	FromExistingClassName string
}

type inlineVolume struct {
	Attributes map[string]string
	Shared     bool
	ReadOnly   bool
}

// capabilities are all that there are. A test compares them with the framework's.
var capabilities = []storageframework.Capability{
	storageframework.CapPersistence, storageframework.CapBlock, storageframework.CapFsGroup, storageframework.CapVolumeMountGroup,
	storageframework.CapExec, storageframework.CapSnapshotDataSource, storageframework.CapSnapshotMetadata,
	storageframework.CapVolumeGroupSnapshot, storageframework.CapPVCDataSource, storageframework.CapMultiPODs, storageframework.CapRWX,
	storageframework.CapControllerExpansion, storageframework.CapNodeExpansion, storageframework.CapOfflineExpansion,
	storageframework.CapOnlineExpansion, storageframework.CapVolumeLimits, storageframework.CapSingleNodeVolume,
	storageframework.CapTopology, storageframework.CapCapacity, storageframework.CapFSResizeFromSourceNotSupported,
	storageframework.CapReadWriteOncePod, storageframework.CapMultiplePVsSameID, storageframework.CapReadOnlyMany,
	storageframework.CapSELinuxMount,
}

// filesystems are those that the suite has patterns for. The empty one is the class's own.
var filesystems = []string{"", "ext3", "ext4", "xfs", "ntfs"}

// Read returns what a driver file says, having read the files that it names, which are beside it. Errors: a key, capability,
// filesystem or timeout that the suite would ignore, a key that is there twice, a class of another driver.
func Read(path string) (Definition, error) {
	var d Definition
	if err := decode(path, &d); err != nil {
		return d, err
	}
	if err := d.check(filepath.Dir(path)); err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// decode reads a file of YAML, in which a key must be spelt as its field is, capitals and all.
func decode(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if data, err = yaml.YAMLToJSONStrict(data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	strict, err := json.UnmarshalStrict(data, into)
	if err := errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (d Definition) check(dir string) error {
	info := d.DriverInfo
	if info.Name == "" {
		return errors.New("the name is missing: DriverInfo.Name")
	}
	errs := []error{
		known("Capabilities", slices.Collect(maps.Keys(info.Capabilities)), capabilities),
		known("SupportedFsType", info.SupportedFsType.List(), filesystems),
		known("Timeouts", slices.Collect(maps.Keys(d.Timeouts)), timeouts()),
		one("StorageClass", d.StorageClass.FromName, d.StorageClass.FromFile, d.StorageClass.FromExistingClassName),
		one("VolumeAttributesClass", false, d.VolumeAttributesClass.FromFile, d.VolumeAttributesClass.FromExistingClassName),
		one("SnapshotClass", d.SnapshotClass.FromName, d.SnapshotClass.FromFile, d.SnapshotClass.FromExistingClassName),
		one("GroupSnapshotClass", d.GroupSnapshotClass.FromName, d.GroupSnapshotClass.FromFile, d.GroupSnapshotClass.FromExistingClassName),
		agree("the capability topology", info.Capabilities[storageframework.CapTopology], "TopologyKeys", len(info.TopologyKeys) > 0),
		agree("the capability snapshotDataSource", info.Capabilities[storageframework.CapSnapshotDataSource], "SnapshotClass", d.SnapshotClass != class{}),
		agree("the capability groupSnapshot", info.Capabilities[storageframework.CapVolumeGroupSnapshot], "GroupSnapshotClass", d.GroupSnapshotClass != class{}),
	}
	for key, value := range d.Timeouts {
		if _, err := time.ParseDuration(value); err != nil { // the suite would take the defaults for all of them
			errs = append(errs, fmt.Errorf("timeouts: %s: %w", key, err))
		}
	}
	return errors.Join(append(errs, d.classes(dir)...)...)
}

// known makes sure that each of got is one of all.
func known[T ~string](where string, got, all []T) error {
	slices.Sort(got)
	for _, g := range got {
		if !slices.Contains(all, g) {
			return fmt.Errorf("%s: %q isn't known; there are %q", where, g, all)
		}
	}
	return nil
}

// timeouts returns the names of the framework's.
func timeouts() []string {
	var all []string
	for f := range reflect.TypeFor[framework.TimeoutContext]().Fields() {
		all = append(all, f.Name)
	}
	return all
}

// one makes sure that a class isn't from two places, of which the suite would take one.
func one(where string, name bool, file, existing string) error {
	n := 0
	for _, is := range []bool{name, file != "", existing != ""} {
		if is {
			n++
		}
	}
	if n > 1 {
		return fmt.Errorf("%s: FromName, FromFile, FromExistingClassName: say one", where)
	}
	return nil
}

// agree makes sure that of two things both are there or none: without the other, each does nothing.
func agree(what string, is bool, other string, there bool) error {
	if is != there {
		return fmt.Errorf("%s and %s: both or none", what, other)
	}
	return nil
}

// classes checks the files that the driver file names.
func (d Definition) classes(dir string) []error {
	var errs []error
	check := func(where, file, kind string, into any, driver func() string) {
		if file == "" {
			return
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if err := decode(file, into); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", where, err))
			return
		}
		if got := driver(); got != d.DriverInfo.Name {
			errs = append(errs, fmt.Errorf("%s: %s: its driver is %q, not %q", where, file, got, d.DriverInfo.Name))
		}
		if got := kindOf(into); got != kind {
			errs = append(errs, fmt.Errorf("%s: %s: it is a %q, not a %s", where, file, got, kind))
		}
	}
	var s storage.StorageClass
	check("StorageClass", d.StorageClass.FromFile, "StorageClass", &s, func() string { return s.Provisioner })
	var a storage.VolumeAttributesClass
	check("VolumeAttributesClass", d.VolumeAttributesClass.FromFile, "VolumeAttributesClass", &a, func() string { return a.DriverName })
	for where, file := range map[string]string{"SnapshotClass": d.SnapshotClass.FromFile, "GroupSnapshotClass": d.GroupSnapshotClass.FromFile} {
		var u unstructured.Unstructured
		if file != "" && !filepath.IsAbs(file) { // the suite opens these from wherever it runs
			errs = append(errs, fmt.Errorf("%s: FromFile: %q isn't an absolute path", where, file))
			continue
		}
		check(where, file, "Volume"+where, &u.Object, func() string {
			name, _, _ := unstructured.NestedString(u.Object, "driver")
			return name
		})
	}
	return errs
}

func kindOf(object any) string {
	switch o := object.(type) {
	case *storage.StorageClass:
		return o.Kind
	case *storage.VolumeAttributesClass:
		return o.Kind
	case *map[string]any:
		kind, _, _ := unstructured.NestedString(*o, "kind")
		return kind
	}
	return ""
}
