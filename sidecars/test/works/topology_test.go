package works

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
)

// topological has a driver whose volumes are not everywhere, and upstream's defaults. strict has
// the opposites.
var (
	topological = shared{setup: setup{name: "topology", controllers: all + ",health-monitor",
		driver: rig.DriverOptions{Topology: true}, zones: []string{"a", "b"}}}
	strict = shared{setup: setup{name: "strict", controllers: "provisioner",
		driver: rig.DriverOptions{Topology: true}, zones: []string{"a", "b"},
		args: []string{"--strict-topology", "--immediate-topology=false"}}}
)

func TestTheTopologyOfAVolumeMatchesTheFlags(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		process   *shared
		class     func(*storagev1.StorageClass)
		selected  func(*corev1.PersistentVolumeClaim)
		requisite []string // zones, sorted
		preferred string   // zone; empty where any is as good
	}{
		"late binding prefers the selected node": {&topological, late,
			selected("topology", "b"), []string{"a", "b"}, "b"},
		"late binding with --strict-topology has no choice": {&strict, late, selected("strict", "b"),
			[]string{"b"}, "b"},
		"immediate binding may use all nodes": {&topological, immediate, unselected,
			[]string{"a", "b"}, ""},
		"immediate binding makes no demands without --immediate-topology": {&strict, immediate, unselected, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, c.process.use(t), c.class)
			_, volume := l.bound("claim", c.selected)
			need := sameCall[*csi.CreateVolumeRequest](l, "CreateVolume", volume.Name).GetAccessibilityRequirements()
			if have := l.zonesOf(need.GetRequisite()); !slices.Equal(slices.Sorted(slices.Values(have)), c.requisite) {
				t.Errorf("the volume was to be in one of the zones %q, not of %q", have, c.requisite)
			}
			if have := l.zonesOf(need.GetPreferred()); c.preferred != "" && have[0] != c.preferred {
				t.Errorf("the zones %q were preferred, in this order, and not %s", have, c.preferred)
			}
		})
	}
}

// immediate is how a class binds that says nothing.
func immediate(*storagev1.StorageClass) {}

// zoneKey is the label that nodes have for a driver's topology.
func zoneKey(driver string) string { return "topology." + driver + "/zone" }

// nodeIn is the only node in a zone of a driver.
func nodeIn(driver, zone string) string { return zone + "." + driver }

// makeZone makes the node of a zone, and registers the driver there as a kubelet would. Volumes of
// the driver can be attached in the first zone.
func makeZone(ctx context.Context, driver, zone, id string) error {
	meta := metav1.ObjectMeta{Name: nodeIn(driver, zone), Labels: map[string]string{zoneKey(driver): zone}}
	if _, err := world.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: meta}, created); err != nil {
		return err
	}
	_, err := world.Kube.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: meta.Name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: id,
			TopologyKeys: []string{zoneKey(driver)}}}},
	}, created)
	return err
}

// selected says, as the scheduler does, on which node the claim's first consumer will be: that of a
// zone of a process's driver.
func selected(process, zone string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": nodeIn(driverOf(process), zone)}
	}
}

func unselected(*corev1.PersistentVolumeClaim) {}

// zonesOf reads zones off a requirement.
func (l *lab) zonesOf(all []*csi.Topology) []string {
	var zones []string
	for _, t := range all {
		zones = append(zones, t.GetSegments()[zoneKey(l.s.driver.Name)])
	}
	return zones
}
