package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	attacher "github.com/kubernetes-csi/external-attacher/v4/pkg/features"
	provisioner "github.com/kubernetes-csi/external-provisioner/v6/pkg/features"
	resizer "github.com/kubernetes-csi/external-resizer/v2/pkg/features"
	snapshotter "github.com/kubernetes-csi/external-snapshotter/v8/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

// Feature gates belong to the process: all packages of upstream add theirs to the same table.

// release is the gate that makes upstream's controllers wait for their workers. It is always on.
const release = attacher.ReleaseLeaderElectionOnExit

// gates are the gates of all controllers. A test compares them with the registered ones.
var gates = []featuregate.Feature{
	attacher.MutableCSINodeAllocatableCount, attacher.ReleaseLeaderElectionOnExit,
	provisioner.Topology, provisioner.CrossNamespaceVolumeDataSource, provisioner.VolumeAttributesClass,
	resizer.AnnotateFsResize, snapshotter.VolumeGroupSnapshot,
}

// knownGates describes the gates of the controllers, without the gates of libraries.
func knownGates() []string {
	var known []string
	for _, line := range utilfeature.DefaultFeatureGate.KnownFeatures() {
		name, _, _ := strings.Cut(line, "=")
		if slices.Contains(gates, featuregate.Feature(name)) && name != string(release) {
			known = append(known, line)
		}
	}
	return known
}

// checkGates tries --feature-gates on a copy of the table.
func (c *Cluster) checkGates() error {
	if on, said := c.gates[string(release)]; said && !on {
		return fmt.Errorf("--feature-gates=%s=false: here leases are always released at the end; take it away", release)
	}
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(c.gates); err != nil {
		return fmt.Errorf("--feature-gates: %w: there are %s", err, strings.Join(knownGates(), ", "))
	}
	return nil
}

// Gate reports whether a gate is on by the command line or by default. It may be called after
// Validate.
func (c *Cluster) Gate(name featuregate.Feature) bool {
	if on, said := c.gates[string(name)]; said {
		return on
	}
	return utilfeature.DefaultFeatureGate.Enabled(name)
}

// applyGates sets the table once, before any constructor reads it. It turns off gates whose API the
// server lacks, as upstream's mains do.
func (c *Cluster) applyGates(ctx context.Context, shared Clients) error {
	table := utilfeature.DefaultMutableFeatureGate
	if err := table.SetFromMap(c.gates); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if err := table.Set(string(release) + "=true"); err != nil {
		return err
	}
	if _, said := c.gates[string(provisioner.VolumeAttributesClass)]; said {
		return nil
	}
	has, err := hasAttributesClass(ctx, shared.Kube.Discovery())
	if err != nil {
		return err
	}
	if !has {
		klog.InfoS("The API server has no VolumeAttributesClass: its gate is off")
		return table.Set(string(provisioner.VolumeAttributesClass) + "=false")
	}
	return nil
}

// hasAttributesClass asks until the API server answers: a guess would lose parameters, or watch a
// missing kind.
func hasAttributesClass(ctx context.Context, d discovery.DiscoveryInterface) (has bool, err error) {
	err = patient(ctx, func() (err error) {
		has, err = provisioner.IsVolumeAttributesClassV1Enabled(d)
		return err
	})
	return has, err
}
