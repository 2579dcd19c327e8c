package v1alpha1

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// contract has the fields of all messages, with their numbers and types. Agents and API servers of
// different versions depend on them: lines are added, and none is changed. KEP marks the fields of
// KEP-4582.
const contract = `
CopyToContainerRequest.container_id 1 string KEP
CopyToContainerRequest.size 2 uint64 KEP
CopyToContainerRequest.checksum 3 uint32 KEP
CopyToContainerRequest.path 4 string
CopyToContainerRequest.sha256 5 bytes
CopyToContainerRequest.pod 6 message
CopyToContainerRequest.declared 7 bool
CopyToContainerRequest.overwrite 8 enum
CopyToContainerRequest.contents 9 bool
CopyToContainerRequest.preserve_mode 10 bool
CopyToContainerRequest.preserve_times 11 bool
CopyToContainerRequest.preserve_owner 12 bool
CopyToContainerRequest.caller 13 message
CopyToContainerRequest.sha256_at_end 14 bool
CopyToContainerResponse.url 1 string KEP
CopyToContainerResponse.copy_id 2 string
CopyToContainerResponse.expires 3 message
CopyFromContainerRequest.container_id 1 string KEP
CopyFromContainerRequest.path 2 string KEP
CopyFromContainerRequest.pod 3 message
CopyFromContainerRequest.precompute 4 bool
CopyFromContainerRequest.sha256 5 bool
CopyFromContainerRequest.caller 6 message
CopyFromContainerResponse.url 1 string KEP
CopyFromContainerResponse.size 2 uint64 KEP
CopyFromContainerResponse.checksum 3 uint32 KEP
CopyFromContainerResponse.copy_id 4 string
CopyFromContainerResponse.expires 5 message
ListCopiesResponse.copies 1 message
Copy.copy_id 1 string
Copy.container_id 2 string
Copy.pod 3 message
Copy.from 4 bool
Copy.path 5 string
Copy.created 6 message
Copy.begun 7 bool
CancelCopyRequest.copy_id 1 string
Pod.namespace 1 string
Pod.name 2 string
Pod.uid 3 string
Caller.name 1 string
Caller.audit_id 2 string
`

func TestContract(t *testing.T) {
	have := map[string]bool{}
	messages := File_api_v1alpha1_copy_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			have[fmt.Sprintf("%s.%s %d %s", m.Name(), f.Name(), f.Number(), f.Kind())] = true
		}
	}
	want := map[string]bool{}
	for line := range strings.Lines(strings.TrimSpace(contract)) {
		line = strings.TrimSuffix(strings.TrimSpace(line), " KEP")
		want[line] = true
		if !have[line] {
			t.Errorf("no field %s", line)
		}
	}
	for field := range have {
		if !want[field] {
			t.Errorf("the field %s is not in the contract", field)
		}
	}
	for name, number := range map[protoreflect.Name]protoreflect.EnumNumber{"NEVER": 0, "FILES": 1, "TREE": 2} {
		if v := Overwrite(0).Descriptor().Values().ByName(name); v == nil || v.Number() != number {
			t.Errorf("%s = %v, want %d", name, v, number)
		}
	}
	if name := string(File_api_v1alpha1_copy_proto.Services().Get(0).FullName()); name != "causeway.copy.v1alpha1.ContainerCopy" {
		t.Error(name)
	}
}
