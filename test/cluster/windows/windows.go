// Package windows makes Windows nodes that are simulated: the API server admits pods for them, the
// scheduler places pods on them, and kwok plays their kubelets. Nothing runs.
package windows

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The annotation of the nodes that kwok plays, by which it tells them from those that have a
// kubelet.
const (
	Annotation      = "kwok.x-k8s.io/node"
	AnnotationValue = "fake"
)

// Taint is on every node, as it is in many clusters: who leaves it to the scheduler where a pod
// runs gets a Linux node. A pod that is to run on Windows tolerates it.
var Taint = core.Taint{Key: "os", Value: "windows", Effect: core.TaintEffectNoSchedule}

// build is that of Windows Server 2022.
const build = "10.0.20348"

// stages is kwok's configuration.
//
//go:embed stages.yaml
var stages []byte

// KwokArgs returns the arguments of kwok v0.8.0, after the program's path, for the nodes that
// Create makes in the cluster of a kubeconfig file. Its configuration is written into dir. kwok
// then listens nowhere: it has no server without an address or a port of nodes. It must be run with
// KWOK_WORKDIR set to a directory that has no kwok.yaml, such as dir, or it reads the user's
// ~/.kwok/kwok.yaml too.
func KwokArgs(kubeconfig, dir string) ([]string, error) {
	path := filepath.Join(dir, "kwok-stages.yaml")
	if err := os.WriteFile(path, stages, 0o644); err != nil {
		return nil, err
	}
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--config=" + path,
		"--manage-nodes-with-annotation-selector=" + Annotation + "=" + AnnotationValue,
		"--node-lease-duration-seconds=0", // none: see stages.yaml
		"--v=WARN",                        // or each heartbeat is logged
	}, nil
}

// Create makes n nodes, windows-1 and so on. Existing nodes stay as they are. They turn ready when
// kwok runs. They have no CSINode, which would list the drivers of the node's kubelet: no driver
// runs here. Errors: a node of that name is not simulated; that of the API server.
func Create(ctx context.Context, client kubernetes.Interface, n int) error {
	if n == 0 {
		return nil
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	for i := range n {
		if err := create(ctx, client, node("windows-"+strconv.Itoa(i+1), version.GitVersion)); err != nil {
			return err
		}
	}
	return nil
}

// create makes a missing node.
func create(ctx context.Context, client kubernetes.Interface, n *core.Node) error {
	_, err := client.CoreV1().Nodes().Create(ctx, n, meta.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there, err := client.CoreV1().Nodes().Get(ctx, n.Name, meta.GetOptions{})
	if err != nil {
		return err
	}
	if there.Annotations[Annotation] != AnnotationValue {
		return fmt.Errorf("there is a node %s already that is not simulated", n.Name)
	}
	return nil
}

// node is the object that a kubelet of that version would register. It has no address, at which no
// server would answer: a request for a pod's log fails at once.
func node(name, version string) *core.Node {
	of := core.ResourceList{
		core.ResourceCPU:              resource.MustParse("4"),
		core.ResourceMemory:           resource.MustParse("16Gi"),
		core.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		core.ResourcePods:             resource.MustParse("110"),
	}
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				core.LabelOSStable: "windows", core.LabelArchStable: "amd64", core.LabelWindowsBuild: build,
				core.LabelHostname: name,
			},
			Annotations: map[string]string{Annotation: AnnotationValue},
		},
		Spec: core.NodeSpec{Taints: []core.Taint{Taint}},
		Status: core.NodeStatus{
			Capacity:    of,
			Allocatable: of,
			NodeInfo: core.NodeSystemInfo{
				OperatingSystem: "windows", Architecture: "amd64", KernelVersion: build,
				OSImage:        "Windows Server 2022 (simulated)",
				KubeletVersion: version, ContainerRuntimeVersion: "kwok://simulated",
			},
		},
	}
}
