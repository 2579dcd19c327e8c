// Package definition reads driver definitions: the files that
// k8s.io/kubernetes/test/e2e/storage/external reads. The package applies the same defaults and the
// same rules for upper and lower case, and reports every mistake of a file. Upstream's reader
// ignores a key, a capability or a timeout that it does not know: the specs for a misspelled word
// are missing, without a message.
package definition

import (
	"reflect"

	"k8s.io/apimachinery/pkg/util/sets"
	e2evolume "k8s.io/kubernetes/test/e2e/framework/volume"
	storageframework "k8s.io/kubernetes/test/e2e/storage/framework"
	"sigs.k8s.io/json"
)

// Definition has the fields of a driver definition. The upstream type (driverDefinition) is not
// exported. A test compares the two.
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

// class is the source of a class. Upstream takes FromName before FromExistingClassName, and that
// before FromFile.
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

// capabilities has all capabilities of the suite. A test compares them with upstream's.
var capabilities = []storageframework.Capability{
	storageframework.CapPersistence, storageframework.CapBlock, storageframework.CapFsGroup,
	storageframework.CapVolumeMountGroup,
	storageframework.CapExec, storageframework.CapSnapshotDataSource, storageframework.CapSnapshotMetadata,
	storageframework.CapVolumeGroupSnapshot, storageframework.CapPVCDataSource, storageframework.CapMultiPODs,
	storageframework.CapRWX,
	storageframework.CapControllerExpansion, storageframework.CapNodeExpansion, storageframework.CapOfflineExpansion,
	storageframework.CapOnlineExpansion, storageframework.CapVolumeLimits, storageframework.CapSingleNodeVolume,
	storageframework.CapTopology, storageframework.CapCapacity, storageframework.CapFSResizeFromSourceNotSupported,
	storageframework.CapReadWriteOncePod, storageframework.CapMultiplePVsSameID, storageframework.CapReadOnlyMany,
	storageframework.CapSELinuxMount,
}

// filesystems are those that the suite has patterns for. The empty name is the default of the
// class.
var filesystems = []string{"", "ext3", "ext4", "xfs", "ntfs"}

// retired are fields of earlier releases that change nothing: published definitions have them.
// Their values are ignored.
var retired = []string{"ShortName", "ClaimSize", "DriverInfo.StressTestOptions.NumSnapshots"}

// Read reads a driver definition, YAML or JSON, and the files that it names. A relative path is
// relative to the definition's directory. The error has one line for each mistake, with its file,
// line and path. The notes, of the same form, are statements that upstream accepts and that have no
// effect, or not the effect that they seem to have.
func Read(path string) (d Definition, notes []string, err error) {
	doc, err := open(path)
	if err != nil {
		return d, nil, err
	}
	d = doc.definition()
	doc.checkInfo(d.DriverInfo)
	doc.checkTimeouts(d.Timeouts)
	doc.checkClasses(d)
	return d, doc.reported(doc.notes), doc.err()
}

// definition decodes the document. Fields of a wrong type keep their defaults.
func (doc *document) definition() Definition {
	// As loadDriverDefinition in external.go has it. A test compares the values.
	d := Definition{DriverInfo: storageframework.DriverInfo{
		SupportedFsType:    sets.NewString(""),
		SupportedSizeRange: e2evolume.SizeRange{Min: "5Gi"},
	}}
	doc.shape("", doc.tree, reflect.TypeFor[Definition]())
	err := json.UnmarshalCaseSensitivePreserveInts(doc.json, &d)
	if err != nil && len(doc.mistakes) == 0 {
		doc.mistake("", "%v", err)
	}
	caps := d.DriverInfo.Capabilities
	for _, c := range []storageframework.Capability{storageframework.CapOnlineExpansion,
		storageframework.CapOfflineExpansion} {
		if _, ok := caps[c]; !ok && caps[storageframework.CapControllerExpansion] {
			caps[c] = true
		}
	}
	return d
}
