// Package client is the client of copies: it reads command lines, packs and unpacks local files,
// and verifies the streams of containers.
package client

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrUsage is the class of an error of the command line.
var ErrUsage = errors.New("usage")

// Spec is the source or the destination of a copy.
type Spec struct {
	Pod       string // "": local
	Namespace string // "": that of the kubeconfig
	Path      string // absolute in a container; "-": standard input or output
}

// Local reports whether the path is one of this machine.
func (s Spec) Local() bool { return s.Pod == "" }

// Stdio reports whether the source is standard input, or the destination standard output.
func (s Spec) Stdio() bool { return s.Local() && s.Path == "-" }

var (
	podForm       = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`) // a DNS subdomain
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)   // a DNS label
	localForm     = regexp.MustCompile(`^(/|\.{1,2}[/\\]|\\)`)
	driveForm     = regexp.MustCompile(`^[A-Za-z]:`)
)

// ParseSpec parses an argument: POD:/PATH or NAMESPACE/POD:/PATH, or a local path. A local path
// with a colon starts with "/" or "./". With windows, a single letter before the colon is a drive,
// so a pod with such a name needs its namespace. Errors: ErrUsage.
func ParseSpec(arg string, windows bool) (Spec, error) {
	before, path, hasColon := strings.Cut(arg, ":")
	switch {
	case arg == "":
		return Spec{}, fmt.Errorf("%w: a path is empty", ErrUsage)
	case strings.Contains(arg, "\x00"):
		return Spec{}, fmt.Errorf("%w: %q has NUL", ErrUsage, arg)
	case !hasColon, localForm.MatchString(arg), windows && driveForm.MatchString(arg):
		return Spec{Path: arg}, nil
	}
	namespace, pod, hasNamespace := strings.Cut(before, "/")
	if !hasNamespace {
		namespace, pod = "", before
	}
	switch {
	case hasNamespace && !namespaceForm.MatchString(namespace), !podForm.MatchString(pod):
		return Spec{}, fmt.Errorf("%w: %q is no pod: must be POD:/PATH or NAMESPACE/POD:/PATH; a local file with a "+
			"colon is ./FILE", ErrUsage, before)
	case !strings.HasPrefix(path, "/"):
		return Spec{}, fmt.Errorf("%w: the path %q in pod %s must be absolute", ErrUsage, path, pod)
	}
	return Spec{Pod: pod, Namespace: namespace, Path: path}, nil
}

// ParseSpecs parses the source and the destination of a copy, of which one is in a container.
// Errors: ErrUsage.
func ParseSpecs(source, destination string, windows bool) (from, to Spec, err error) {
	if from, err = ParseSpec(source, windows); err != nil {
		return from, to, err
	}
	if to, err = ParseSpec(destination, windows); err != nil {
		return from, to, err
	}
	switch {
	case from.Local() && to.Local():
		err = fmt.Errorf("%w: neither %q nor %q is in a container, such as POD:/PATH", ErrUsage, source, destination)
	case !from.Local() && !to.Local():
		err = fmt.Errorf("%w: both paths are in a container: copy to this machine first", ErrUsage)
	}
	return from, to, err
}
