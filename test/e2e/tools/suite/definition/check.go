package definition

import (
	stdjson "encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/test/e2e/framework"
	storageframework "k8s.io/kubernetes/test/e2e/storage/framework"
	"sigs.k8s.io/json"
)

func (doc *document) checkInfo(info storageframework.DriverInfo) {
	if info.Name == "" {
		doc.mistake("DriverInfo.Name", "missing: must be the name of the CSIDriver object")
	}
	for c := range info.Capabilities {
		if !slices.Contains(capabilities, c) {
			doc.mistake("DriverInfo.Capabilities."+string(c), "unknown capability: must be one of %s",
				list(capabilities))
		}
	}
	for name := range info.SupportedFsType {
		if !slices.Contains(filesystems, name) {
			doc.note("DriverInfo.SupportedFsType."+name, "the suite has no specs for this filesystem, only for %s",
				list(filesystems[1:]))
		}
	}
	modes := []core.PersistentVolumeAccessMode{core.ReadWriteOnce, core.ReadOnlyMany, core.ReadWriteMany,
		core.ReadWriteOncePod}
	for i, m := range info.RequiredAccessModes {
		if !slices.Contains(modes, m) {
			doc.mistake(element("DriverInfo.RequiredAccessModes", i), "invalid access mode %q: must be one of %s", m,
				list(modes))
		}
	}
	doc.checkSizes(info)
	if info.Capabilities[storageframework.CapTopology] && len(info.TopologyKeys) == 0 {
		doc.note("DriverInfo.Capabilities.topology", "no effect without DriverInfo.TopologyKeys: the specs are skipped")
	}
	if !info.Capabilities[storageframework.CapTopology] && len(info.TopologyKeys) > 0 {
		doc.note("DriverInfo.TopologyKeys", "no specs for topology without the capability topology")
	}
}

// list returns names for a message.
func list[T ~string](names []T) string {
	var all []string
	for _, n := range slices.Sorted(slices.Values(names)) {
		all = append(all, string(n))
	}
	return strings.Join(all, ", ")
}

// checkSizes checks the sizes that specs parse when they run. An unset size is the suite's affair.
func (doc *document) checkSizes(info storageframework.DriverInfo) {
	const at = "DriverInfo.SupportedSizeRange"
	r := info.SupportedSizeRange
	sizes := map[string]string{at + ".Min": r.Min, at + ".Max": r.Max, at + ".Step": r.Step}
	if p := info.PerformanceTestOptions; p != nil && p.ProvisioningOptions != nil {
		sizes["DriverInfo.PerformanceTestOptions.ProvisioningOptions.VolumeSize"] = p.ProvisioningOptions.VolumeSize
	}
	parsed := map[string]resource.Quantity{}
	for path, text := range sizes {
		if text == "" {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() <= 0 {
			doc.mistake(path, "invalid size %q: must be a positive quantity, such as 1Gi", text)
			continue
		}
		parsed[path] = q
	}
	lo, hasMin := parsed[at+".Min"]
	if hi, ok := parsed[at+".Max"]; ok && hasMin && hi.Cmp(lo) < 0 {
		doc.mistake(at+".Max", "invalid size %q: must not be less than Min, which is %s (default 5Gi)", r.Max, r.Min)
	}
}

// checkTimeouts checks the timeouts. Upstream compares their names without case, ignores unknown
// names, and for a single invalid value takes the defaults of all.
func (doc *document) checkTimeouts(timeouts map[string]string) {
	known := fieldsIn(reflect.TypeFor[framework.TimeoutContext]())
	for name, value := range timeouts {
		at := "Timeouts." + name
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }) {
			doc.mistake(at, "unknown timeout: must be one of %s", list(known))
		}
		if _, err := time.ParseDuration(value); err != nil {
			doc.mistake(at, "invalid duration %q: must be a number with a unit, such as 5m", value)
		}
	}
}

// checkClasses checks from where the classes come, and the files that they come from.
func (doc *document) checkClasses(d Definition) {
	caps, driver := d.DriverInfo.Capabilities, d.DriverInfo.Name
	attributes := class{FromFile: d.VolumeAttributesClass.FromFile,
		FromExistingClassName: d.VolumeAttributesClass.FromExistingClassName}
	doc.checkClass("StorageClass", d.StorageClass,
		func(c *document) { c.checkTyped(&storage.StorageClass{}, "provisioner", driver) })
	doc.checkClass("VolumeAttributesClass", attributes,
		func(c *document) { c.checkTyped(&storage.VolumeAttributesClass{}, "driverName", driver) })
	for _, s := range []struct {
		field      string
		class      class
		capability storageframework.Capability
	}{
		{"SnapshotClass", d.SnapshotClass, storageframework.CapSnapshotDataSource},
		{"GroupSnapshotClass", d.GroupSnapshotClass, storageframework.CapVolumeGroupSnapshot},
	} {
		doc.checkClass(s.field, s.class, func(c *document) { c.checkSnapshotClass("Volume"+s.field, driver) })
		if caps[s.capability] && s.class == (class{}) {
			doc.note("DriverInfo.Capabilities."+string(s.capability), "no effect without %s: the specs are skipped",
				s.field)
		}
		if !caps[s.capability] && s.class != (class{}) {
			doc.note(s.field, "no effect without the capability %s: the specs are skipped", s.capability)
		}
	}
}

// checkClass checks a class. checkClass reads only the file that upstream would read.
func (doc *document) checkClass(at string, c class, check func(*document)) {
	taken := ""
	for _, source := range []struct {
		name string
		set  bool
	}{{"FromName", c.FromName}, {"FromExistingClassName", c.FromExistingClassName != ""}, {"FromFile",
		c.FromFile != ""}} {
		switch {
		case source.set && taken != "":
			doc.note(at+"."+source.name, "no effect beside %s", taken)
		case source.set:
			taken = source.name
		}
	}
	if taken != "FromFile" {
		return
	}
	file := c.FromFile
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(doc.file), file)
	}
	of, err := open(file)
	if err != nil {
		doc.mistake(at+".FromFile", "%v", err)
		return
	}
	check(of)
	doc.mistakes = append(doc.mistakes, of.mistakes...)
}

// checkTyped checks a file with an object of the type that into has.
func (doc *document) checkTyped(into any, driverField, driver string) {
	doc.checkKind(reflect.TypeOf(into).Elem().Name(), driverField, driver)
	strict, err := json.UnmarshalStrict(doc.json, into)
	if err != nil {
		strict = append(strict, err)
	}
	for _, err := range strict {
		path := ""
		if quoted := strings.Split(err.Error(), `"`); len(quoted) == 3 { // unknown field "parameters.x"
			path = quoted[1]
		}
		doc.add(&doc.mistakes, doc.line(path), "", "%v", err)
	}
}

// checkKind checks the fields that every class has.
func (doc *document) checkKind(kind, driverField, driver string) {
	for _, f := range [][2]string{{"kind", kind}, {driverField, driver}} {
		if got, ok := doc.value(f[0]); f[1] != "" && (!ok || got != f[1]) {
			doc.mistake(f[0], "invalid value %s: must be %q", quoted(got), f[1])
		}
	}
}

// value returns a field of the document's object.
func (doc *document) value(name string) (any, bool) {
	object, _ := doc.tree.(map[string]any)
	v, ok := object[name]
	return v, ok
}

func quoted(v any) string {
	text, err := stdjson.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// checkSnapshotClass checks a file with a VolumeSnapshotClass or a VolumeGroupSnapshotClass.
// Upstream panics at a parameter that is not a string.
func (doc *document) checkSnapshotClass(kind, driver string) {
	doc.checkKind(kind, "driver", driver)
	parameters, _ := doc.value("parameters")
	switch p := parameters.(type) {
	case nil:
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(p)) {
			if _, ok := p[key].(string); !ok {
				doc.wrongType("parameters."+key, p[key], "a string; put it in quotes")
			}
		}
	default:
		doc.wrongType("parameters", parameters, "an object")
	}
}
