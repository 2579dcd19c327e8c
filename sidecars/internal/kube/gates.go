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

// Gates are the process's, not a controller's: upstream's packages all add theirs to one table.

// release is the gate without which upstream's workers can't be waited for. We always do, so it is always on.
const release = attacher.ReleaseLeaderElectionOnExit

// gates are all that the controllers know. A test holds it against what they register.
var gates = []featuregate.Feature{
	attacher.MutableCSINodeAllocatableCount, attacher.ReleaseLeaderElectionOnExit,
	provisioner.Topology, provisioner.CrossNamespaceVolumeDataSource, provisioner.VolumeAttributesClass,
	resizer.AnnotateFsResize, snapshotter.VolumeGroupSnapshot,
}

// knownGates describes the gates of the controllers, without those that libraries have brought along.
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

// Gate reports whether a gate is on by the command line, or by default. It may be asked after Validate.
func (c *Cluster) Gate(name featuregate.Feature) bool {
	if on, said := c.gates[string(name)]; said {
		return on
	}
	return utilfeature.DefaultFeatureGate.Enabled(name)
}

// applyGates sets the one table, once, before any constructor reads it. A gate whose API the server lacks is turned off, as
// upstream's mains do each for itself.
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

// hasAttributesClass asks until there is an answer: a guess would either lose parameters or watch what isn't there.
func hasAttributesClass(ctx context.Context, d discovery.DiscoveryInterface) (has bool, err error) {
	err = patient(ctx, func() (err error) {
		has, err = provisioner.IsVolumeAttributesClassV1Enabled(d)
		return err
	})
	return has, err
}
