// Package cri finds containers by the Container Runtime Interface.
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Errors of Find.
var (
	// ErrNotFound: the runtime has no such container in the pod.
	ErrNotFound = errors.New("no such container in the pod")
	// ErrNotRunning: the container is created, or has ended.
	ErrNotRunning = errors.New("the container is not running")
	// ErrNotNative: its runtime keeps the files of containers where the node cannot see them, such
	// as in a virtual machine.
	ErrNotNative = errors.New("the runtime of the container has no root directory on the node")
	// ErrUnavailable: the runtime does not answer.
	ErrUnavailable = errors.New("the container runtime does not answer")
)

// Labels that the kubelet gives containers. k8s.io/kubernetes, pkg/kubelet/types/labels.go.
const (
	podName      = "io.kubernetes.pod.name"
	podNamespace = "io.kubernetes.pod.namespace"
	podUID       = "io.kubernetes.pod.uid"
)

// Pod is the pod of a container.
type Pod struct{ Namespace, Name, UID string }

// Container is a running container.
type Container struct {
	PID   int    // of its first process, on the node
	Label string // SELinux context of its files
}

// Finder finds containers.
type Finder struct {
	client runtime.RuntimeServiceClient
	native []string
}

// NewFinder returns a Finder for a runtime. native are the types of runtimes whose containers are
// processes of the node, such as io.containerd.runc.v2: a virtual machine has a process on the
// node, too, but its files are those of the node.
func NewFinder(client runtime.RuntimeServiceClient, native []string) *Finder {
	return &Finder{client, native}
}

// Check returns ErrUnavailable if the runtime does not answer.
func (f *Finder) Check(ctx context.Context) error {
	if _, err := f.client.Version(ctx, &runtime.VersionRequest{}); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// info is the part of the verbose status that containerd and CRI-O have in common.
type info struct {
	PID         int    `json:"pid"`
	RuntimeType string `json:"runtimeType"` // CRI-O has none
	RuntimeSpec struct {
		Linux struct {
			MountLabel string `json:"mountLabel"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

// Find returns the running container with this ID. Errors: ErrNotFound, also for a container of
// another pod; ErrNotRunning, ErrNotNative, ErrUnavailable.
func (f *Finder) Find(ctx context.Context, id string, pod Pod) (Container, error) {
	resp, err := f.client.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if status.Code(err) == codes.NotFound {
		return Container{}, fmt.Errorf("%w: %.80q", ErrNotFound, id)
	}
	if err != nil {
		return Container{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s := resp.GetStatus()
	labels := s.GetLabels()
	if s.GetId() != id || (Pod{labels[podNamespace], labels[podName], labels[podUID]}) != pod {
		return Container{}, fmt.Errorf("%w: %.80q", ErrNotFound, id) // an ID can also be a prefix for containerd
	}
	if s.GetState() != runtime.ContainerState_CONTAINER_RUNNING {
		return Container{}, fmt.Errorf("%w: its state is %s", ErrNotRunning, s.GetState())
	}
	var i info
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &i); err != nil {
		return Container{}, fmt.Errorf("%w: its status has no details: %w", ErrNotNative, err)
	}
	if !slices.Contains(f.native, i.RuntimeType) {
		return Container{}, fmt.Errorf("%w: %.80q; those with one are %q", ErrNotNative, i.RuntimeType, f.native)
	}
	if i.PID <= 1 {
		return Container{}, fmt.Errorf("%w: its status has the process %d", ErrNotNative, i.PID)
	}
	return Container{i.PID, i.RuntimeSpec.Linux.MountLabel}, nil
}
