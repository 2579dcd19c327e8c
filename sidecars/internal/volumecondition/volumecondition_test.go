package volumecondition

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Encoded by the Go package of CSI spec v1.12.0.
const (
	statusLost   = "\x12\r\b\x01\x12\tdisk lost"  // VolumeCondition{Abnormal: true, Message: "disk lost"}
	statusNormal = "\x12\x00"                     // VolumeCondition{}
	statusFine   = "\x12\x06\x12\x04fine"         // VolumeCondition{Message: "fine"}
	statusBad    = "\x12\v\b\x01\x12\tdisk l\x80" // a message of 7 bytes that claims 9
)

func TestDecode(t *testing.T) {
	lost := Condition{Abnormal: true, Message: "disk lost"}
	for _, c := range []struct {
		name, unknown string
		want          Condition
		ok            bool
	}{
		{"an abnormal volume", statusLost, lost, true},
		{"a normal volume", statusNormal, Condition{}, true},
		{"a normal volume with a message", statusFine, Condition{Message: "fine"}, true},
		{"other unknown fields are skipped", "\x1a\x01x" + statusLost + "\x20\x01", lost, true},
		{"unknown fields of the condition are skipped", "\x12\x05\b\x01\x1a\x01x", Condition{Abnormal: true}, true},
		{"a later condition is merged", statusLost + "\x12\x02\b\x00", Condition{Message: "disk lost"}, true},
		{"no fields", "", Condition{}, false},
		{"no condition", "\x1a\x01x", Condition{}, false},
		{"a condition that is a number", "\x10\x01", Condition{}, false},
		{"abnormal that is a string", "\x12\x03\n\x01x", Condition{}, false},
		{"a message that is a number", "\x12\x02\x10\x01", Condition{}, false},
		{"a truncated message", statusBad, Condition{}, false},
		{"a truncated condition", "\x12\x7f\b\x01", Condition{}, false},
		{"a truncated tag", statusLost + "\x80", Condition{}, false},
		{"field number 0", "\x02\x00", Condition{}, false},
		{"the largest field number", statusLost + "\xf8\xff\xff\xff\x0f\x00", lost, true},
		{"a field number above the largest", statusLost + "\x80\x80\x80\x80\x10\x00", Condition{}, false},
		{"a field number above the largest in the condition", "\x12\x06\x80\x80\x80\x80\x10\x00", Condition{}, false},
		{"an end of a group that did not begin", statusLost + "\x14", Condition{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := decode([]byte(c.unknown)); got != c.want || (err == nil) != c.ok {
				t.Errorf("decode = %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

func TestAStatusThatIsMissingIsAnError(t *testing.T) {
	for _, s := range []proto.Message{(*csi.ListVolumesResponse_VolumeStatus)(nil),
		(*csi.ControllerGetVolumeResponse_VolumeStatus)(nil)} {
		if c, err := Of(s); err == nil {
			t.Errorf("Of(nil) = %+v", c)
		}
	}
}

// FuzzDecode compares decode with the decoder of the protobuf library.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{statusLost, statusNormal, statusFine, statusBad, statusLost + "\x12\x02\b\x00",
		"\x1a\x01x" + statusLost} {
		f.Add([]byte(s))
	}
	descriptor := statusDescriptor(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if err != nil {
			return
		}
		oracle := dynamicpb.NewMessage(descriptor)
		if err := proto.Unmarshal(b, oracle); err != nil {
			t.Fatalf("%q is %+v to us, and to the library %v", b, got, err)
		}
		c := oracle.Get(descriptor.Fields().ByNumber(2)).Message()
		want := Condition{c.Get(c.Descriptor().Fields().ByNumber(1)).Bool(),
			string(c.Get(c.Descriptor().Fields().ByNumber(2)).Bytes())}
		if got != want {
			t.Errorf("%q is %+v, and to the library %+v", b, got, want)
		}
	})
}

// statusDescriptor describes VolumeStatus and VolumeCondition of CSI v1.12. The message is bytes,
// since a driver may send invalid UTF-8, which printable replaces.
func statusDescriptor(f *testing.F) protoreflect.MessageDescriptor {
	field := func(name string, number int32,
		t descriptorpb.FieldDescriptorProto_Type) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &t,
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
	}
	inStatus := field("volume_condition", 2, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE)
	inStatus.TypeName = proto.String(".VolumeCondition")
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("csi-v1.12"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("VolumeStatus"), Field: []*descriptorpb.FieldDescriptorProto{inStatus}},
			{Name: proto.String("VolumeCondition"), Field: []*descriptorpb.FieldDescriptorProto{
				field("abnormal", 1, descriptorpb.FieldDescriptorProto_TYPE_BOOL), field("message", 2,
					descriptorpb.FieldDescriptorProto_TYPE_BYTES)}},
		},
	}, nil)
	if err != nil {
		f.Fatal(err)
	}
	return file.Messages().ByName("VolumeStatus")
}
