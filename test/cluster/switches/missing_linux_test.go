package switches

import (
	"fmt"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
)

// driver is the name of the driver.
const driver = "hostpath.csi.causeway.dev"

// TestPodsWaitForTheDriver: without preventPodSchedulingIfMissing, a pod with a claim is placed on
// a node where the driver is not registered, and waits there. With it, the pod is not placed until
// the driver is registered.
func TestPodsWaitForTheDriver(t *testing.T) {
	s := begin(t)
	node := nodes[0]
	s.apply(claim("data", directories, "10Mi", ""), pod("first", only(node), "data"))
	s.runs("first")
	s.in("first", "echo before >/data/file")
	s.ends("first")

	s.Cleanup(func() { // the scene's cleanup, which deletes volumes, comes after it
		s.registered(node.Name, true)
		s.must(upgrade(s.anyhow(), kube, "--set=hostpath.csiDriver.preventPodSchedulingIfMissing=false"))
	})
	s.registered(node.Name, false)
	s.same("the field by default", "false", s.value("csidriver/"+driver, "{.spec.preventPodSchedulingIfMissing}"))
	s.apply(pod("placed", "", "data"))
	await.NoError(s, "the kubelet misses the driver", func() error {
		return contains(s.kubectl("get", "events", "--field-selector=involvedObject.name=placed"),
			"driver name "+driver+" not found in the list of registered CSI drivers")
	})
	s.same("the node of the pod", node.Name, s.value("pod/placed", "{.spec.nodeName}"))
	s.ends("placed")

	s.must(upgrade(s.anyhow(), kube, "--set=hostpath.csiDriver.preventPodSchedulingIfMissing=true"))
	s.same("the field", "true", s.value("csidriver/"+driver, "{.spec.preventPodSchedulingIfMissing}"))
	s.apply(pod("waits", "", "data"), pod("other", only(node)))
	await.NoError(s, "the scheduler refuses the node", func() error {
		return contains(s.value("pod/waits", `{.status.conditions[?(@.type=="PodScheduled")].message}`),
			driver+" CSI driver is not installed on the node")
	})
	s.runs("other") // a pod without a claim is not affected
	s.same("the node of the pod", "", s.value("pod/waits", "{.spec.nodeName}"))
	s.registered(node.Name, true)
	s.runs("waits")
	s.same("the node of the pod", node.Name, s.value("pod/waits", "{.spec.nodeName}"))
	s.same("the file", "before", s.in("waits", "cat /data/file"))
}

// registered starts or ends the pod of the driver on a node, and waits for the effect on its
// CSINode.
func (s *scene) registered(node string, want bool) {
	s.Helper()
	label := driverLabel + "-"
	if want {
		label = driverLabel + "=yes"
	}
	s.kubectl("label", "--overwrite", "node", node, label)
	await.NoError(s, fmt.Sprintf("the driver is registered on %s: %v", node, want), func() error {
		got := strings.Contains(s.value("csinode/"+node, "{.spec.drivers[*].name}"), driver)
		return same(fmt.Sprint(want), fmt.Sprint(got))
	})
}

func contains(text, part string) error {
	if !strings.Contains(text, part) {
		return fmt.Errorf("no %q in %q", part, text)
	}
	return nil
}
