package options

import (
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestValues: options survive their way through the query of a URL, and the parameter codec.
func TestValues(t *testing.T) {
	size, sum := int64(1<<40), uint32(1<<32-1)
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	codec := runtime.NewParameterCodec(s)
	for _, o := range []interface {
		runtime.Object
		Values() url.Values
	}{
		&PodCopyFromOptions{}, &PodCopyFromOptions{Container: "c", Path: "/a b/&?=", SHA256: true},
		&PodCopyToOptions{}, &PodCopyToOptions{Container: "c", Path: "/ü\n", Contents: true, Size: &size, Checksum: &sum,
			SHA256: strings.Repeat("0f", 32), Overwrite: Tree, PreserveMode: true, PreserveTimes: true, PreserveOwner: true},
	} {
		v, err := url.ParseQuery(o.Values().Encode())
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
		if err := codec.DecodeParameters(v, Version, got); err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("%+v becomes %+v, %v", o, got, err)
		}
		if c := o.DeepCopyObject(); !reflect.DeepEqual(c, o) || c == runtime.Object(o) {
			t.Errorf("DeepCopyObject of %+v = %+v", o, c)
		}
	}
}

func TestInvalidValues(t *testing.T) {
	for _, query := range []string{"paht=/x", "path=/a&path=/b", "contents=perhaps", "size=1", "checksum=1", "size=-1&checksum=1",
		"size=1&checksum=4294967296", "size=9223372036854775808&checksum=1", "sha256=" + strings.Repeat("0", 64),
		"path=%2Fa%FF", "size=1&checksum=1&sha256=00", "size=1&checksum=1&sha256=" + strings.Repeat("g", 64), "overwrite=all"} {
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if err := new(PodCopyToOptions).Parse(v); err == nil {
			t.Errorf("%s is no error", query)
		}
	}
	if err := new(PodCopyFromOptions).Parse(url.Values{"overwrite": {"never"}}); err == nil {
		t.Error("an option of the other direction is no error")
	}
}

func TestURLPath(t *testing.T) {
	if got := URLPath(To, "ns", "p"); got != "/apis/copy.causeway.dev/v1alpha1/namespaces/ns/podcopiesto/p/proxy" {
		t.Error(got)
	}
}

// TestNamesOfParameters: plugins and API servers of different versions depend on them.
func TestNamesOfParameters(t *testing.T) {
	for _, tc := range []struct {
		have map[string]field
		want string
	}{
		{new(PodCopyFromOptions).fields(), "container path sha256"},
		{new(PodCopyToOptions).fields(), "checksum container contents overwrite path preserveMode preserveOwner preserveTimes " +
			"sha256 sha256AtEnd size"},
	} {
		if got := strings.Join(slices.Sorted(maps.Keys(tc.have)), " "); got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
}

// FuzzParse: a query is an error, or options whose query gives the same options.
func FuzzParse(f *testing.F) {
	f.Add("path=/a&container=c&sha256=true")
	f.Add("path=/a&size=1&checksum=4294967295&overwrite=tree&preserveMode=1&sha256AtEnd=true")
	f.Add("size=-1&checksum=1&sha256=00")
	f.Fuzz(func(t *testing.T, query string) {
		v, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		var from, from2 PodCopyFromOptions
		if from.Parse(v) == nil {
			if err := from2.Parse(from.Values()); err != nil || from2 != from {
				t.Errorf("%q = %+v, then %+v, %v", query, from, from2, err)
			}
		}
		var to, to2 PodCopyToOptions
		if to.Parse(v) == nil {
			if err := to2.Parse(to.Values()); err != nil || !reflect.DeepEqual(to2, to) {
				t.Errorf("%q = %+v, then %+v, %v", query, to, to2, err)
			}
			if to.Size != nil && *to.Size < 0 || (to.Size == nil) != (to.Checksum == nil) {
				t.Errorf("%q = %+v", query, to)
			}
		}
	})
}
