package csidriver

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/manifests"
)

// manifestArgs returns the arguments of the driver in a file of deploy/linux, with values for $(…)
// as Kubernetes sets them.
func manifestArgs(t *testing.T, file string) []string {
	t.Helper()
	args := manifests.Args(t, file, "driver")
	for i, arg := range args {
		args[i] = strings.NewReplacer("$(NODE_NAME)", "node-1", "$(NAMESPACE)", "causeway").Replace(arg)
	}
	return args
}

func TestTheManifestsCommandLinesAreRead(t *testing.T) {
	for file, want := range map[string]mode{"controller.yaml": modeController, "node.yaml": modeNode} {
		args := manifestArgs(t, file)
		o, err := parse(program(), args, env(nil))
		if err != nil || o.mode != want || strings.Contains(strings.Join(args, " "), "$(") {
			t.Errorf("%s: %q: mode %s, %v, want %s", file, args, o.mode, err, want)
		}
		if want != modeNode {
			continue
		}
		// The manifests set the defaults explicitly, because other containers have these paths,
		// too.
		if other, err := parse(program(), []string{"--kubelet-dir=" + o.kubeletDir}, env(nil)); err != nil ||
			other.endpoint != o.endpoint || other.driverName != o.driverName {
			t.Errorf("--endpoint=%s and --driver-name=%s are not the defaults %s and %s, %v", o.endpoint, o.driverName,
				other.endpoint, other.driverName, err)
		}
		// The records of the root must survive the pod, so they are below the mounted kubelet
		// directory.
		if rel, err := filepath.Rel(o.kubeletDir, o.stateDir); err != nil || !filepath.IsLocal(rel) {
			t.Errorf("--state-dir=%s is not in %s", o.stateDir, o.kubeletDir)
		}
	}
}

// TestTheChartsCommandLinesForAttachedDisksAreRead parses the flags that the chart sets for a
// backend that is not NodeLocal: its controller is not a router, and its nodes have no port for a
// router.
func TestTheChartsCommandLinesForAttachedDisksAreRead(t *testing.T) {
	p := program()
	p.Backends = p.Backends[1:]
	p.Backends[0].Flags = func(set *flag.FlagSet) {
		set.String("cloud-dir", "", "")
		set.Int("attach-limit", 0, "")
	}
	golden := filepath.Join("..", "..", "test", "cluster", "chart", "testdata", "attached.diff") // from deploy/linux
	for kind, want := range map[string]mode{"Deployment": modeController, "DaemonSet": modeNode} {
		args := manifests.ArgsOf(t, golden, kind, "driver")
		for i, arg := range args {
			args[i] = strings.ReplaceAll(arg, "$(NODE_NAME)", "node-1")
		}
		o, err := parse(p, args, env(nil))
		if err != nil || o.mode != want || o.routes() || o.driverName != "attached.csi.example.com" ||
			strings.Contains(strings.Join(args, " "), "$(") {
			t.Errorf("%s: %q: mode %s, a router: %v, %v, want %s", kind, args, o.mode, o.routes(), err, want)
		}
	}
}
