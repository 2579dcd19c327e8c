package cri

import (
	"context"
	"errors"
	"maps"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fake is a runtime with one container.
type fake struct {
	runtime.RuntimeServiceClient
	status runtime.ContainerStatus
	info   string
	err    error
}

func (f *fake) ContainerStatus(_ context.Context, req *runtime.ContainerStatusRequest, _ ...grpc.CallOption) (*runtime.ContainerStatusResponse, error) {
	if f.err != nil {
		return nil, f.err
	}
	if !req.Verbose {
		return nil, errors.New("not verbose")
	}
	return &runtime.ContainerStatusResponse{Status: &f.status, Info: map[string]string{"info": f.info}}, nil
}

func TestFind(t *testing.T) {
	pod := Pod{"ns", "p", "u"}
	labels := map[string]string{podNamespace: "ns", podName: "p", podUID: "u"}
	const running = `{"pid":77,"runtimeType":"runc","runtimeSpec":{"linux":{"mountLabel":"system_u:object_r:container_file_t:s0"}}}`
	for name, tc := range map[string]struct {
		change func(f *fake)
		want   error
	}{
		"running":        {func(*fake) {}, nil},
		"exited":         {func(f *fake) { f.status.State = runtime.ContainerState_CONTAINER_EXITED }, ErrNotRunning},
		"created":        {func(f *fake) { f.status.State = runtime.ContainerState_CONTAINER_CREATED }, ErrNotRunning},
		"of another pod": {func(f *fake) { f.status.Labels[podUID] = "another" }, ErrNotFound},
		"of a pod with this UID in another namespace": {func(f *fake) { f.status.Labels[podNamespace] = "x" }, ErrNotFound},
		"a prefix of its ID":                          {func(f *fake) { f.status.Id = "idid" }, ErrNotFound},
		"unknown":                                     {func(f *fake) { f.err = status.Error(codes.NotFound, "x") }, ErrNotFound},
		"a runtime that is down":                      {func(f *fake) { f.err = status.Error(codes.Unavailable, "x") }, ErrUnavailable},
		"a virtual machine":                           {func(f *fake) { f.info = `{"pid":77,"runtimeType":"io.containerd.kata.v2"}` }, ErrNotNative},
		"no type":                                     {func(f *fake) { f.info = `{"pid":77}` }, ErrNotNative},
		"no details":                                  {func(f *fake) { f.info = "" }, ErrNotNative},
		"no process":                                  {func(f *fake) { f.info = `{"runtimeType":"runc"}` }, ErrNotNative},
		"the first process of the node":               {func(f *fake) { f.info = `{"pid":1,"runtimeType":"runc"}` }, ErrNotNative},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{info: running, status: runtime.ContainerStatus{Id: "id", Labels: maps.Clone(labels),
				State: runtime.ContainerState_CONTAINER_RUNNING}}
			tc.change(f)
			got, err := NewFinder(f, []string{"runc"}).Find(t.Context(), "id", pod)
			if !errors.Is(err, tc.want) || err == nil && got != (Container{77, "system_u:object_r:container_file_t:s0"}) {
				t.Errorf("Find = %+v, %v, want %v", got, err, tc.want)
			}
		})
	}
}
