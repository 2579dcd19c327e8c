// Package manifests reads the arguments of containers in deploy/linux, for tests that compare
// programs with them.
package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Linux returns the directory of the manifests, in the repository's root: a directory above the
// directory in which a test runs.
func Linux() string {
	for root := ".."; len(root) < len("../../../../.."); root = filepath.Join(root, "..") {
		if dir := filepath.Join(root, "deploy", "linux"); exists(dir) {
			return dir
		}
	}
	return filepath.Join("deploy", "linux")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// workload has the fields of a Deployment or DaemonSet that are read. Kubernetes' own types would
// have to be compiled for every platform.
type workload struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Name string
					Args []string
				}
			}
		}
	}
}

// Args returns the arguments of a container in a file. The test fails if the container does not
// exist.
func Args(t testing.TB, file, container string) []string {
	t.Helper()
	return ArgsOf(t, file, "", container)
}

// ArgsOf is Args for a workload of a kind, or of any kind if that is empty.
func ArgsOf(t testing.TB, file, kind, container string) []string {
	t.Helper()
	text, err := Read(filepath.Join(Linux(), file))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var d workload
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			continue // an object of another kind, with other fields
		}
		if kind != "" && d.Kind != kind {
			continue
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if c.Name == container {
				return c.Args
			}
		}
	}
	t.Fatalf("%s has no %s container %s", file, kind, container)
	return nil
}
