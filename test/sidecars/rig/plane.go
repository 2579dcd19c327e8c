package rig

import (
	"context"
	"os"

	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"k8s.io/client-go/kubernetes"

	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// Plane is a control plane with the CRDs for snapshots, and clients to it.
type Plane struct {
	*controlplane.Plane
	Kube      kubernetes.Interface
	Snapshots snapshots.Interface
}

// crds is where the CRDs are, from a package's directory in this module.
const crds = "../../deploy/crds"

// StartPlane starts one. Close ends it.
func StartPlane(ctx context.Context, o controlplane.Options) (*Plane, error) {
	p, err := controlplane.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	plane := &Plane{Plane: p, Kube: kubernetes.NewForConfigOrDie(p.Config()), Snapshots: snapshots.NewForConfigOrDie(p.Config())}
	if err := p.ApplyCRDs(ctx, os.DirFS(crds)); err != nil {
		p.Close()
		return nil, err
	}
	return plane, nil
}
