package rig

import (
	"context"
	"os"
	"path/filepath"

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

// crds is the directory of the CRDs, relative to the module of csi-sidecars.
const crds = "../charts/causeway/crds"

// StartPlane starts a Plane. Close ends it.
func StartPlane(ctx context.Context, o controlplane.Options) (*Plane, error) {
	product, err := Product(ctx)
	if err != nil {
		return nil, err
	}
	p, err := controlplane.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	plane := &Plane{Plane: p, Kube: kubernetes.NewForConfigOrDie(p.Config()),
		Snapshots: snapshots.NewForConfigOrDie(p.Config())}
	if err := p.ApplyCRDs(ctx, os.DirFS(filepath.Join(product, crds))); err != nil {
		p.Close()
		return nil, err
	}
	return plane, nil
}
