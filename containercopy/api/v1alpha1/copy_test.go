package v1alpha1

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// contract has the calls, the fields of all messages with their numbers and types, and the enums.
// Agents and API servers of different versions depend on them: lines are added, and none is
// changed. KEP-4582 has container_id, path (of a copy from), size, checksum and url with these
// numbers.
const contract = `
CopyToContainerRequest.container_id 1 string
CopyToContainerRequest.size 2 uint64
CopyToContainerRequest.checksum 3 uint32
CopyToContainerRequest.path 4 string
CopyToContainerRequest.sha256 5 bytes
CopyToContainerRequest.pod 6 Pod
CopyToContainerRequest.declared 7 bool
CopyToContainerRequest.overwrite 8 Overwrite
CopyToContainerRequest.contents 9 bool
CopyToContainerRequest.preserve_mode 10 bool
CopyToContainerRequest.preserve_times 11 bool
CopyToContainerRequest.preserve_owner 12 bool
CopyToContainerRequest.caller 13 Caller
CopyToContainerRequest.sha256_at_end 14 bool
CopyToContainerResponse.url 1 string
CopyToContainerResponse.copy_id 2 string
CopyToContainerResponse.expires 3 google.protobuf.Timestamp
CopyFromContainerRequest.container_id 1 string
CopyFromContainerRequest.path 2 string
CopyFromContainerRequest.pod 3 Pod
CopyFromContainerRequest.precompute 4 bool
CopyFromContainerRequest.sha256 5 bool
CopyFromContainerRequest.caller 6 Caller
CopyFromContainerResponse.url 1 string
CopyFromContainerResponse.size 2 uint64
CopyFromContainerResponse.checksum 3 uint32
CopyFromContainerResponse.copy_id 4 string
CopyFromContainerResponse.expires 5 google.protobuf.Timestamp
ListCopiesResponse.copies 1 repeated Copy
Copy.copy_id 1 string
Copy.container_id 2 string
Copy.pod 3 Pod
Copy.from 4 bool
Copy.path 5 string
Copy.created 6 google.protobuf.Timestamp
Copy.begun 7 bool
CancelCopyRequest.copy_id 1 string
Pod.namespace 1 string
Pod.name 2 string
Pod.uid 3 string
Caller.name 1 string
Caller.audit_id 2 string
Overwrite.NEVER 0
Overwrite.FILES 1
Overwrite.TREE 2
CopyToContainer CopyToContainerRequest CopyToContainerResponse
CopyFromContainer CopyFromContainerRequest CopyFromContainerResponse
ListCopies ListCopiesRequest ListCopiesResponse
CancelCopy CancelCopyRequest CancelCopyResponse
`

func TestContract(t *testing.T) {
	have := map[string]bool{}
	add := func(format string, args ...any) {
		have[strings.ReplaceAll(fmt.Sprintf(format, args...), "causeway.copy.v1alpha1.", "")] = true
	}
	messages := File_api_v1alpha1_copy_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			kind := f.Kind().String()
			switch {
			case f.Message() != nil:
				kind = string(f.Message().FullName())
			case f.Enum() != nil:
				kind = string(f.Enum().FullName())
			}
			if c := f.Cardinality(); c != protoreflect.Optional {
				kind = c.String() + " " + kind
			}
			add("%s.%s %d %s", m.Name(), f.Name(), f.Number(), kind)
		}
	}
	for i := range File_api_v1alpha1_copy_proto.Enums().Len() {
		e := File_api_v1alpha1_copy_proto.Enums().Get(i)
		for j := range e.Values().Len() {
			add("%s.%s %d", e.Name(), e.Values().Get(j).Name(), e.Values().Get(j).Number())
		}
	}
	service := File_api_v1alpha1_copy_proto.Services().Get(0)
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		if m.IsStreamingClient() || m.IsStreamingServer() {
			t.Errorf("%s is a stream", m.Name())
		}
		add("%s %s %s", m.Name(), m.Input().FullName(), m.Output().FullName())
	}
	if name := service.FullName(); name != "causeway.copy.v1alpha1.ContainerCopy" || File_api_v1alpha1_copy_proto.Services().Len() != 1 {
		t.Errorf("the first of %d services is %s", File_api_v1alpha1_copy_proto.Services().Len(), name)
	}
	want := map[string]bool{}
	for line := range strings.Lines(strings.TrimSpace(contract)) {
		line = strings.TrimSpace(line)
		want[line] = true
		if !have[line] {
			t.Errorf("missing: %s", line)
		}
	}
	for line := range have {
		if !want[line] {
			t.Errorf("not in the contract: %s", line)
		}
	}
}
