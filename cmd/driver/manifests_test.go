package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workload is what is read here of a Deployment or a DaemonSet. Kubernetes' own types would be compiled for every platform.
type workload struct {
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

// manifestArgs returns the arguments of the driver in a file of deploy/linux, with what Kubernetes puts in place of $(…).
func manifestArgs(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "linux", file))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var d workload
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			continue
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if c.Name != "driver" {
				continue
			}
			for i, arg := range c.Args {
				c.Args[i] = strings.NewReplacer("$(NODE_NAME)", "node-1", "$(NAMESPACE)", "causeway").Replace(arg)
			}
			return c.Args
		}
	}
	t.Fatalf("%s has no driver", file)
	return nil
}

func TestTheManifestsCommandLinesAreRead(t *testing.T) {
	for file, want := range map[string]mode{"controller.yaml": modeController, "node.yaml": modeNode} {
		args := manifestArgs(t, file)
		o, err := parse(args, func(string) string { return "" }, io.Discard)
		if err != nil || o.mode != want || strings.Contains(strings.Join(args, " "), "$(") {
			t.Errorf("%s: %q: mode %s, %v, want %s", file, args, o.mode, err, want)
		}
		if want != modeNode {
			continue
		}
		// Said in so many words, as other containers have these paths too.
		if other := (options{backends: backends(), backend: "hostpath", kubeletDir: o.kubeletDir}); other.fillIn(func(string) string { return "" }) != nil || other.endpoint != o.endpoint || other.driverName != o.driverName {
			t.Errorf("--endpoint=%s and --driver-name=%s aren't the defaults %s and %s", o.endpoint, o.driverName, other.endpoint, other.driverName)
		}
		// What is remembered of the root must outlive the pod: it is where the kubelet's directory is mounted.
		if !nested(o.kubeletDir, o.stateDir) {
			t.Errorf("--state-dir=%s isn't in %s", o.stateDir, o.kubeletDir)
		}
	}
}
