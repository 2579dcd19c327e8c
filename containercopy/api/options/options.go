// Package options defines the query parameters of a copy at kube-apiserver:
//
//	GET /apis/copy.causeway.dev/v1alpha1/namespaces/NAMESPACE/podcopiesfrom/POD/proxy
//	GET /apis/copy.causeway.dev/v1alpha1/namespaces/NAMESPACE/podcopiesto/POD/proxy
//
// Both are WebSocket handshakes with the subprotocol of package wire. An unknown parameter is an
// error: a server must not ignore an option that a newer client relies on.
package options

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Version is the API group of copies, and its version.
var Version = schema.GroupVersion{Group: "copy.causeway.dev", Version: "v1alpha1"}

// Resources of the API, and their subresource. kube-apiserver ends no stream of this subresource
// early.
const (
	From  = "podcopiesfrom"
	To    = "podcopiesto"
	Proxy = "proxy"
)

// URLPath returns the path of a resource of a pod.
func URLPath(resource, namespace, pod string) string {
	return path.Join("/apis", Version.Group, Version.Version, "namespaces", namespace, resource, pod, Proxy)
}

// PodCopyFromOptions are the options of a copy from a container.
type PodCopyFromOptions struct {
	metav1.TypeMeta `json:",inline"`

	Container string `json:"container,omitempty"` // empty: the default container of the pod
	Path      string `json:"path"`                // absolute
	SHA256    bool   `json:"sha256,omitempty"`    // the end of the stream also has its SHA-256
}

// PodCopyToOptions are the options of a copy to a container.
type PodCopyToOptions struct {
	metav1.TypeMeta `json:",inline"`

	Container string `json:"container,omitempty"` // empty: the default container of the pod
	Path      string `json:"path"`                // absolute
	Contents  bool   `json:"contents,omitempty"`  // the entries of the source directory, without the directory

	// Size and Checksum are those of the tar stream, in bytes and as CRC-32C. Both or neither is
	// set; the end of the stream always has them.
	Size     *int64  `json:"size,omitempty"`
	Checksum *uint32 `json:"checksum,omitempty"`
	SHA256   string  `json:"sha256,omitempty"` // of the stream, in hexadecimal digits; needs Size

	// SHA256AtEnd: the end of the stream has its SHA-256, which the copy must have.
	SHA256AtEnd bool `json:"sha256AtEnd,omitempty"`

	Overwrite     string `json:"overwrite,omitempty"` // never, files or tree; empty: never
	PreserveMode  bool   `json:"preserveMode,omitempty"`
	PreserveTimes bool   `json:"preserveTimes,omitempty"`
	PreserveOwner bool   `json:"preserveOwner,omitempty"`
}

// Values of Overwrite.
const (
	Never = "never"
	Files = "files" // an existing directory keeps its other entries
	Tree  = "tree"  // an existing directory is replaced
)

// field is a query parameter of options.
type field struct {
	set func(value string) error
	get func() string // empty: not set
}

// text returns a parameter that is a string.
func text(p *string) field {
	return field{func(v string) error {
		if !utf8.ValidString(v) { // the calls of agents are protobuf
			return fmt.Errorf("%.128q is not UTF-8", v)
		}
		*p = v
		return nil
	}, func() string { return *p }}
}

// flag returns a parameter that is true or false.
func flag(p *bool) field {
	return field{func(v string) (err error) {
		*p, err = strconv.ParseBool(v)
		return err
	}, func() string {
		if *p {
			return "true"
		}
		return ""
	}}
}

func (o *PodCopyFromOptions) fields() map[string]field {
	return map[string]field{"container": text(&o.Container), "path": text(&o.Path), "sha256": flag(&o.SHA256)}
}

func (o *PodCopyToOptions) fields() map[string]field {
	return map[string]field{
		"container": text(&o.Container), "path": text(&o.Path), "contents": flag(&o.Contents),
		"size": {func(v string) error {
			n, err := strconv.ParseInt(v, 10, 64)
			o.Size = &n
			return err
		}, func() string {
			if o.Size == nil {
				return ""
			}
			return strconv.FormatInt(*o.Size, 10)
		}},
		"checksum": {func(v string) error {
			n, err := strconv.ParseUint(v, 10, 32)
			sum := uint32(n)
			o.Checksum = &sum
			return err
		}, func() string {
			if o.Checksum == nil {
				return ""
			}
			return strconv.FormatUint(uint64(*o.Checksum), 10)
		}},
		"sha256": text(&o.SHA256), "sha256AtEnd": flag(&o.SHA256AtEnd),
		"overwrite": text(&o.Overwrite), "preserveMode": flag(&o.PreserveMode),
		"preserveTimes": flag(&o.PreserveTimes), "preserveOwner": flag(&o.PreserveOwner),
	}
}

// values returns the parameters that are set.
func values(fields map[string]field) url.Values {
	v := url.Values{}
	for name, f := range fields {
		if value := f.get(); value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// parse sets fields from parameters.
func parse(v url.Values, fields map[string]field) error {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		f, ok := fields[name]
		if !ok {
			return fmt.Errorf("unknown parameter %.64q", name)
		}
		if len(v[name]) != 1 {
			return fmt.Errorf("%d values of the parameter %s", len(v[name]), name)
		}
		if err := f.set(v[name][0]); err != nil {
			return fmt.Errorf("invalid parameter %s: %w", name, err)
		}
	}
	return nil
}

// Values returns the query parameters.
func (o *PodCopyFromOptions) Values() url.Values { return values(o.fields()) }

// Values returns the query parameters.
func (o *PodCopyToOptions) Values() url.Values { return values(o.fields()) }

// Parse sets the options from query parameters.
func (o *PodCopyFromOptions) Parse(v url.Values) error { return parse(v, o.fields()) }

// Parse sets the options from query parameters.
func (o *PodCopyToOptions) Parse(v url.Values) error {
	if err := parse(v, o.fields()); err != nil {
		return err
	}
	switch sum, err := hex.DecodeString(o.SHA256); {
	case (o.Size == nil) != (o.Checksum == nil):
		return fmt.Errorf("size and checksum need each other")
	case o.Size != nil && *o.Size < 0:
		return fmt.Errorf("invalid size %d: must not be negative", *o.Size)
	case o.SHA256 != "" && (err != nil || len(sum) != 32):
		return fmt.Errorf("invalid sha256 %.80q: must have 64 hexadecimal digits", o.SHA256)
	case o.SHA256 != "" && o.Size == nil:
		return fmt.Errorf("sha256 needs size and checksum")
	case !slices.Contains([]string{"", Never, Files, Tree}, o.Overwrite):
		return fmt.Errorf("invalid overwrite %.64q: must be %s, %s or %s", o.Overwrite, Never, Files, Tree)
	}
	return nil
}
