package switches

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// TestPlacementByCapacity: with the KubeSchedulerConfiguration of the page, new claims go to the
// node with more available capacity, or to the node with less.
func TestPlacementByCapacity(t *testing.T) {
	s := begin(t)
	full, free := nodes[0], nodes[1]
	filler := local.StorageDir + "/filler"
	s.on(full, "fallocate -l 5G "+filler)
	s.Cleanup(func() { s.on(full, "rm -f "+filler) })
	for _, class := range []string{directories, images} {
		await.NoError(s, "the capacity of "+full.Name+" is smaller", func() error {
			if a, b := s.capacity(class, full), s.capacity(class, free); b-a < 4<<30 {
				return fmt.Errorf("%s has %d bytes, and %s %d", full.Name, a, free.Name, b)
			}
			return nil
		})
	}
	s.scheduler()
	for profile, want := range map[string]local.Node{"spread-volumes": free, "pack-volumes": full} {
		for _, class := range []string{directories, images} {
			name := profile + "-" + class
			s.apply(claim(name, class, "512Mi", ""), pod(name, "schedulerName: "+profile, name))
			s.runs(name)
			s.same("the node of "+name, want.Name, s.value("pod/"+name, "{.spec.nodeName}"))
		}
	}
}

// capacity returns the published capacity of a class on a node.
func (s *scene) capacity(class string, n local.Node) int64 {
	s.Helper()
	out := s.kubectl("-n", "causeway", "get", "csistoragecapacities", "-o", `jsonpath={range .items[?(@.storageClassName=="`+
		class+`")]}{.nodeTopology.matchLabels.hostpath\.csi\.causeway\.dev/node} {.capacity}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if node, size, _ := strings.Cut(strings.TrimSpace(line), " "); node == n.Name {
			q, err := resource.ParseQuantity(size)
			s.must(err)
			return q.Value()
		}
	}
	return 0
}

// scheduler runs a second scheduler, with the configuration of the page, and ends it with the test.
func (s *scene) scheduler() {
	s.Helper()
	bin, err := components.Build(s.Context(), os.Stderr, "kube-scheduler")
	s.must(err)
	config := strings.ReplaceAll(s.shown("kubernetes-features.md", "kind: KubeSchedulerConfiguration"),
		"/etc/kubernetes/scheduler.conf", kube.Kubeconfig())
	path := filepath.Join(s.TempDir(), "scheduler.yaml")
	s.must(os.WriteFile(path, []byte(config), 0o600))
	s.start(exec.CommandContext(s.Context(), filepath.Join(bin, "kube-scheduler"), "--config="+path, "--secure-port=0"))
}

// shown returns the block of YAML of a page in docs/how-to that contains a line.
func (s *scene) shown(page, line string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(chart.Sources(), "docs", "how-to", page))
	s.must(err)
	for _, part := range strings.Split(string(text), "```yaml\n")[1:] {
		if block, _, _ := strings.Cut(part, "```"); strings.Contains(block, line) {
			return block
		}
	}
	s.Fatalf("%s shows no %s", page, line)
	return ""
}

// start starts a program, and ends it with the test, which shows its output if it has failed.
func (s *scene) start(cmd *exec.Cmd) {
	s.Helper()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = kube.Environment()
	cmd.SysProcAttr = process.DieWithThread()
	s.must(cmd.Start())
	s.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if s.Failed() {
			s.Logf("%s: %s", cmd.Path, out.String())
		}
	})
}
