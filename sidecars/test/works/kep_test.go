package works

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
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

// The KEP's command line for a node, with an additional flag: there is no /registration on this
// machine.
func TestTheKEPsNodeRegistersTheDriver(t *testing.T) {
	t.Parallel()
	const endpoint = "/var/lib/kubelet/plugins/kep-node.csi.example/csi.sock"
	s := launch(t, setup{name: "kep-node", command: []string{
		"--csi-address=unix:$SOCKET",
		"--controllers=node-driver-registrar",
		"--kubelet-registration-path=" + endpoint,
		"--plugin-registration-path=$DIR",
	}})
	socket := filepath.Join(filepath.Dir(s.driver.Socket), s.driver.Name+"-reg.sock")
	conn := must(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	info := awaitObject(t, "the registrar", "it answers", func(ctx context.Context) (*registration.PluginInfo, error) {
		return registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	}, func(*registration.PluginInfo) bool { return true })
	if info.GetType() != registration.CSIPlugin || info.GetName() != s.driver.Name || info.GetEndpoint() != endpoint ||
		!slices.Equal(info.GetSupportedVersions(), []string{"1.0.0"}) {
		t.Errorf("the kubelet is told %v", info)
	}
}
