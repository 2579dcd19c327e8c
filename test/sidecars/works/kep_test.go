package works

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The command line of KEP-4958 for a controller, as written there but for the socket's path.
func TestTheKEPsControllerRunsAsWritten(t *testing.T) {
	t.Parallel()
	s := launch(t, setup{name: "kep", namespace: "kube-system", command: []string{
		"--csi-address=unix:$SOCKET",
		"--controllers=attacher,provisioner,resizer,snapshotter",
		"--feature-gates=Topology=true",
		"--leader-election",
		"--leader-election-namespace=kube-system",
		"--timeout=30s",
		"--attacher-timeout=30s",
		"--attacher-worker-thread=100",
		"--provisioner-timeout=30s",
	}})
	l := newLab(t, s)
	claim, volume := l.bound("claim")
	l.detach(l.attached(volume, l.csiNode()))
	l.remove(claim)

	leases := must(world.Kube.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{}))(t)
	held := map[string]string{}
	for _, lease := range leases.Items {
		if lease.Spec.HolderIdentity != nil {
			held[lease.Name] = *lease.Spec.HolderIdentity
		}
	}
	if held["csi-sidecars-kep-csi-example"] == "" {
		t.Errorf("nobody holds the lease; these are held: %v", held)
	}
}
