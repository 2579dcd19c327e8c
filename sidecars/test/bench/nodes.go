package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeName(i int) string {
	return fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250)
}

// zoneKey is the topology key of a node. A volume of a zone cannot be used in another zone.
const zoneKey = corev1.LabelTopologyZone

// node makes a node as a kubelet registers it and then tells its state, and its CSINode.
func (l *loader) node(ctx context.Context, i int) error {
	n, err := l.kube.CoreV1().Nodes().Create(ctx, newNode(i), metav1.CreateOptions{FieldManager: "kubelet"})
	if err != nil {
		return err
	}
	n.Status = nodeStatus(i)
	if n, err = l.kube.CoreV1().Nodes().UpdateStatus(ctx, n, thenKubelet); err != nil {
		return err
	}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDR(i), []string{podCIDR(i)}
	n.Annotations["node.alpha.kubernetes.io/ttl"] = "0"
	if n, err = l.kube.CoreV1().Nodes().Update(ctx, n,
		metav1.UpdateOptions{FieldManager: "kube-controller-manager"}); err != nil {
		return err
	}
	_, err = l.kube.StorageV1().CSINodes().Create(ctx, newCSINode(n, l.name),
		metav1.CreateOptions{FieldManager: "kubelet"})
	return err
}

func podCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 64+i/250, i%250) }

func newNode(i int) *corev1.Node {
	zone := string(rune('a' + i%3))
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i),
			Labels: map[string]string{
				"kubernetes.io/hostname": nodeName(i), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
				"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
				"node.kubernetes.io/instance-type": "m6i.4xlarge", "beta.kubernetes.io/instance-type": "m6i.4xlarge",
				corev1.LabelTopologyRegion: "eu-central-1", zoneKey: "eu-central-1" + zone,
				"example.com/pool": "general", "example.com/image-version": "1.37.2-20261101",
			},
			Annotations: map[string]string{
				"csi.volume.kubernetes.io/nodeid": `{"memory.csi.causeway.dev":"` +
					nodeName(i) + `"}`,
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
			},
		},
		Spec: corev1.NodeSpec{ProviderID: fmt.Sprintf("aws:///eu-central-1%s/i-%017x", zone, i)},
	}
}

func nodeStatus(i int) corev1.NodeStatus {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("110"),
		"hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
	}
	s := corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250)},
			{Type: corev1.NodeInternalDNS, Address: nodeName(i)}, {Type: corev1.NodeHostName, Address: nodeName(i)},
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: hex(i, 32), SystemUUID: uuid(i), BootID: uuid(i + nodes), KernelVersion: "6.18.4-generic",
			OSImage: "Debian GNU/Linux 13 (trixie)", ContainerRuntimeVersion: "containerd://2.2.1",
			KubeletVersion:  "v1.37.2",
			OperatingSystem: "linux", Architecture: "amd64",
		},
	}
	for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure, corev1.NodeReady} {
		s.Conditions = append(s.Conditions,
			corev1.NodeCondition{Type: c, Status: "False", Reason: "KubeletHas" + string(c),
				Message: "kubelet has enough: " + string(c), LastHeartbeatTime: metav1.Now(),
				LastTransitionTime: metav1.Now()})
	}
	s.Conditions[3].Status = corev1.ConditionTrue
	for j := range 30 {
		name := fmt.Sprintf("registry.example.com/team-%d/service-%d", j%7, j)
		s.Images = append(s.Images, corev1.ContainerImage{Names: []string{name + "@sha256:" + hex(j, 64),
			fmt.Sprintf("%s:v1.%d.%d", name, j, i%5)}, SizeBytes: int64(j+1) << 24})
	}
	return s
}

func newCSINode(n *corev1.Node, driver string) *storagev1.CSINode {
	most := int32(127)
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name,
			Annotations: map[string]string{"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs," +
				"kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
				"kubernetes.io/gce-pd,kubernetes.io/vsphere-volume,kubernetes.io/portworx-volume"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driver, NodeID: n.Name, TopologyKeys: []string{zoneKey},
				Allocatable: &storagev1.VolumeNodeResources{Count: &most}},
			{Name: "efs.csi.example.com", NodeID: n.Name},
		}},
	}
}

// hex and uuid return texts of a realistic length, different for each i.
func hex(i, digits int) string {
	return strings.Repeat(fmt.Sprintf("%08x", uint32(i)*2654435761), digits/8)
}

func uuid(i int) string {
	h := hex(i, 32)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
