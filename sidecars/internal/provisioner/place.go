package provisioner

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	upstream "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/features"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	gateway "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewayinformers "sigs.k8s.io/gateway-api/pkg/client/informers/externalversions"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1beta1"

	"github.com/causeway-csi/causeway/sidecars/internal/kube"
	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// nodeFlags are the flags for a provisioner on every node.
type nodeFlags struct {
	on        bool
	immediate bool
	base, max time.Duration
	all       *sidecar.Flags
}

func (n *nodeFlags) flags(f *sidecar.Flags) {
	n.all = f
	f.Bool(&n.on, "node-deployment", false,
		"a provisioner runs on each node ($NODE_NAME), and creates volumes for that node only")
	f.Bool(&n.immediate, "node-deployment-immediate-binding", true,
		"with node-deployment, process claims without a selected node, too")
	f.Duration(&n.base, "node-deployment-base-delay", 20*time.Second,
		"with node-deployment, delay before the process tries to own such a claim")
	f.Duration(&n.max, "node-deployment-max-delay", time.Minute,
		"with node-deployment, maximum delay before the process tries to own such a claim")
}

func (n *nodeFlags) validate(elected bool) error {
	switch {
	case !n.on:
		return n.all.Need("node-deployment", "node-deployment-immediate-binding", "node-deployment-base-delay",
			"node-deployment-max-delay")
	case elected:
		return errors.New("--node-deployment with --leader-election: one on each node, or one for all? Take one away")
	}
	return nil
}

// place has the listers from which upstream's packages read topology.
type place struct {
	topology    bool // volumes have a topology
	node        *upstream.NodeDeployment
	nodes       corelisters.NodeLister
	csiNodes    storagelisters.CSINodeLister
	attachments storagelisters.VolumeAttachmentLister
}

// place selects the watched kinds by the capabilities of the driver: nodes if volumes have a
// topology, attachments if the driver attaches.
func (c *controller) place(env *sidecar.Env, clients kube.Clients) (place, error) {
	p := place{topology: upstream.SupportsTopology(env.Plugin)}
	shared := c.cluster.Informers()
	if env.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		p.attachments = shared.Storage().V1().VolumeAttachments().Lister()
	}
	if c.nodes.on {
		name := os.Getenv("NODE_NAME")
		if name == "" {
			return p, errors.New("--node-deployment needs the node's name in the environment: NODE_NAME")
		}
		info, err := upstream.GetNodeInfo(env.Conn, c.work.Timeout)
		if err != nil {
			return p, fmt.Errorf("find the topology of this node: %w", err)
		}
		p.node = &upstream.NodeDeployment{NodeName: name, ClaimInformer: shared.Core().V1().PersistentVolumeClaims(),
			ImmediateBinding: c.nodes.immediate, BaseDelay: c.nodes.base, MaxDelay: c.nodes.max, NodeInfo: info}
	}
	switch {
	case !p.topology:
	case p.node != nil:
		return p, p.only(env.Driver, clients)
	default:
		p.nodes = shared.Core().V1().Nodes().Lister()
		p.csiNodes = shared.Storage().V1().CSINodes().Lister()
	}
	return p, nil
}

// only makes listers of a single node without a watch: the driver has reported the topology that
// upstream reads.
func (p *place) only(driver string, clients kube.Clients) error {
	segments := p.node.NodeInfo.GetAccessibleTopology().GetSegments()
	here := storagev1.CSINodeDriver{Name: driver, NodeID: p.node.NodeInfo.GetNodeId()}
	for key := range segments {
		here.TopologyKeys = append(here.TopologyKeys, key)
	}
	never := informers.NewSharedInformerFactory(clients.Kube, 0) // never started
	nodes, csiNodes := never.Core().V1().Nodes(), never.Storage().V1().CSINodes()
	p.nodes, p.csiNodes = nodes.Lister(), csiNodes.Lister()
	meta := metav1.ObjectMeta{Name: p.node.NodeName}
	labeled := *meta.DeepCopy()
	labeled.Labels = segments
	return errors.Join(
		nodes.Informer().GetStore().Add(&corev1.Node{ObjectMeta: labeled}),
		csiNodes.Informer().GetStore().Add(&storagev1.CSINode{ObjectMeta: meta,
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{here}}}))
}

// grants returns the lister of ReferenceGrants if the gate is on, else nil.
func (c *controller) grants(clients kube.Clients) gatewaylisters.ReferenceGrantLister {
	if !c.cluster.Gate(features.CrossNamespaceVolumeDataSource) {
		return nil
	}
	client, err := gateway.NewForConfig(clients.Config)
	if err != nil {
		panic(err) // the address is valid: two clients use it
	}
	factory := gatewayinformers.NewSharedInformerFactory(client, upstream.ResyncPeriodOfReferenceGrantInformer)
	grants := factory.Gateway().V1beta1().ReferenceGrants()
	c.cluster.Own(factory, grants.Informer().HasSynced)
	return grants.Lister()
}
