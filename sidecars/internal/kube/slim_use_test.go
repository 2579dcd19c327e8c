package kube

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// readers are packages, by prefix, whose functions all count: the users of an informer with a
// transform.
var readers = []string{
	"github.com/kubernetes-csi/external-attacher/v4/",
	"github.com/kubernetes-csi/external-provisioner/v6/",
	"github.com/kubernetes-csi/external-resizer/v2/",
	"github.com/kubernetes-csi/external-snapshotter/v8/",
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/",
	"github.com/causeway-csi/causeway/sidecars/internal/",
}

// helpers are packages, by prefix, of whose functions those count that a reader hands a pod or a
// node to.
var helpers = []string{"k8s.io/component-helpers/"}

// doors are the packages of upstream's that a binary imports. Their imports are checked as well.
var doors = []string{
	"github.com/kubernetes-csi/external-attacher/v4/pkg/controller",
	"github.com/kubernetes-csi/external-attacher/v4/pkg/attacher",
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/controller",
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity",
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/owner",
	"github.com/kubernetes-csi/external-resizer/v2/pkg/controller",
	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifycontroller",
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller",
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller",
	"github.com/causeway-csi/causeway/sidecars/internal/...",
}

// harmless has the reasons why code that the analysis cannot follow reads no field that slim drops.
// (A recorder of events, for example, reads the fields of an object's reference: kind, namespace,
// name, UID and resourceVersion.)
var harmless = map[string]string{
	"reads ObjectMeta.Finalizers of any object in github.com/kubernetes-csi/external-provisioner/v6/pkg/controller.checkFinalizer": "asked of claims and snapshots only",
	"reads ObjectMeta.ManagedFields of any object in " +
		"github.com/causeway-csi/causeway/sidecars/internal/kube.slim": "asked before they are dropped",
	"hands Node to (k8s.io/client-go/tools/cache.Store).Add":                                 "the provisioner of one node fills a store of its own, without slim",
	"loses the type of Pod in github.com/causeway-csi/causeway/sidecars/internal/kube.slim":  "goes into the cache",
	"loses the type of Node in github.com/causeway-csi/causeway/sidecars/internal/kube.slim": "goes into the cache",
}

// TestNoControllerReadsFieldsThatSlimDrops reads the source of all users of shared informers. It
// fails when an upstream release, or this project, begins to read a field of a pod or node that
// slim drops: keep the field then. It also fails when a whole pod or node is passed to code that
// the analysis cannot follow: add to harmless the fields that this code reads, or keep more.
//
// The analysis does not find a type that was lost: a handler of events that reads an object by
// reflection, or through a struct that has a pod in a field. Nor does it find code that counts
// volumes, of which slim drops some.
func TestNoControllerReadsFieldsThatSlimDrops(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles five controllers where that was never done")
	}
	kept := whatSlimKeeps()
	found := findings(t, kept, readers, doors)
	for _, f := range found {
		if harmless[f.what] == "" {
			t.Errorf("%s\n\tin %s, at %s", f.what, f.in, f.at)
		}
	}
	for what := range harmless {
		if !slices.ContainsFunc(found, func(f finding) bool { return f.what == what }) {
			t.Errorf("harmless names %q, which no code does", what)
		}
	}
}

func TestTheReaderOfFieldsFindsThem(t *testing.T) {
	const reader = "github.com/causeway-csi/causeway/sidecars/internal/kube/testdata/reader"
	var got []string
	for _, f := range findings(t, whatSlimKeeps(), []string{reader}, []string{reader}) {
		got = append(got, strings.ReplaceAll(f.in+" "+f.what, reader+".", ""))
	}
	slices.Sort(got)
	want := []string{
		"(*hidden).Method$1 reads PodSpec.HostNetwork",
		"Any reads ObjectMeta.Annotations of any object in Any",
		"Fields reads Node.Spec",
		"Fields reads Node.Status",
		"Fields reads PersistentVolumeClaimVolumeSource.ReadOnly",
		"Fields reads Pod.ObjectMeta.Annotations",
		"Fields reads Pod.ObjectMeta.OwnerReferences",
		"Fields reads PodSpec.Containers",
		"Fields reads PodSpec.InitContainers",
		"Fields reads PodStatus.Conditions",
		"Fields reads VolumeSource.ConfigMap",
		"Whole Pod.ObjectMeta as a whole",
		"Whole hands Pod to a function that is a value in Whole",
		"Whole hands Pod to encoding/json.Marshal",
		"Whole hands Pod to fmt.Println",
		"Whole hands Pod to k8s.io/component-helpers/scheduling/corev1.PodPriority",
		"Whole loses the type of Pod in Whole",
		"Whole selects pods by Pod.ObjectMeta.Labels",
		"generic[*k8s.io/api/core/v1.Pod] loses the type of Pod in generic[*k8s.io/api/core/v1.Pod]",
		"k8s.io/component-helpers/scheduling/corev1.PodPriority reads PodSpec.Priority",
	}
	got = slices.Compact(got) // PodPriority reads it twice
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestTheFieldsThatSlimKeepsAreFound: a list that is empty would let everything be read, or
// nothing.
func TestTheFieldsThatSlimKeepsAreFound(t *testing.T) {
	kept := whatSlimKeeps()
	for field, want := range map[string]bool{
		"Pod.Spec": true, "PodSpec.Volumes": true, "PodSpec.Containers": false, "VolumeSource.Ephemeral": true, "VolumeSource.ConfigMap": false,
		"EphemeralVolumeSource.VolumeClaimTemplate": false, "PodStatus.Phase": true, "Pod.ObjectMeta.UID": true, "Pod.ObjectMeta.Labels": false,
		"Node.ObjectMeta.Labels": true, "Node.ObjectMeta.CreationTimestamp": false, "Node.Spec": false, "Node.Status": false,
	} {
		if kept.fields[field] != want {
			t.Errorf("%s: got %v, want %v", field, !want, want)
		}
	}
	for _, name := range []string{"Pod", "PodSpec", "Volume", "VolumeSource", "PodStatus", "Node"} {
		if !kept.types[name] {
			t.Errorf("%s is not among the types of which a part is kept", name)
		}
	}
}

// keeps shows which fields of which types of k8s.io/api/core/v1 slim keeps. Metadata, which all
// types share, is under the object that has it: Pod.ObjectMeta.Name.
type keeps struct {
	fields map[string]bool
	types  map[string]bool // those of which a part is kept
}

// whatSlimKeeps asks slim itself, with objects that have something in every field.
func whatSlimKeeps() keeps {
	k := keeps{map[string]bool{}, map[string]bool{}}
	for _, full := range []any{&corev1.Pod{}, &corev1.Node{}} {
		v := reflect.ValueOf(full).Elem()
		fill(v)
		kept, _ := slim(full)
		k.compare(v.Type().Name(), v, reflect.ValueOf(kept).Elem())
	}
	return k
}

// fill puts something into every field.
func fill(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Unix(1, 0)
		return
	case *resource.Quantity:
		*x = resource.MustParse("1")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	default: // numbers
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

// compare notes which fields of a struct are still there, wholly or in part.
func (k keeps) compare(name string, full, kept reflect.Value) {
	k.types[name] = true
	for i := range full.NumField() {
		field := full.Type().Field(i)
		before, after := full.Field(i), kept.Field(i)
		k.fields[name+"."+field.Name] = !after.IsZero()
		if after.IsZero() || reflect.DeepEqual(before.Interface(), after.Interface()) {
			continue
		}
		for before.Kind() == reflect.Pointer || before.Kind() == reflect.Slice {
			if before.Kind() == reflect.Slice {
				before, after = before.Index(0), after.Index(0)
			} else {
				before, after = before.Elem(), after.Elem()
			}
		}
		part := before.Type().Name()
		if part == "ObjectMeta" {
			part = name + ".ObjectMeta"
		}
		k.compare(part, before, after)
	}
}
