package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const planted = "hunter2-Xk9"

// plant writes secrets into every field of a request that may hold a secret, and meaningful texts
// into other fields.
func plant(m protoreflect.Message, texts map[protoreflect.Name]string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		text := protoreflect.ValueOfString(texts[f.Name()])
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
			entries := m.Mutable(f).Map()
			set := func(k, v string) {
				entries.Set(protoreflect.ValueOfString(k).MapKey(),
					protoreflect.ValueOfString(v))
			}
			if isSecret(f) {
				set("anything", planted)
				set("password", planted+"-2")
			} else if f.Name() != "segments" {
				set("csi.storage.k8s.io/serviceAccount.tokens",
					`{"audience":{"token":"`+planted+`","expirationTimestamp":"2026"}}`)
				set("password", planted)
				set("clientSecret", planted)
			}
		case f.Name() == "mount_flags":
			m.Mutable(f).List().Append(protoreflect.ValueOfString("password=" + planted))
			m.Mutable(f).List().Append(protoreflect.ValueOfString("credentials=" + planted))
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			element := m.Mutable(f).List().AppendMutable().Message()
			plant(element, texts)
		case f.Kind() == protoreflect.MessageKind && !f.IsMap() && f.ContainingOneof() == nil:
			plant(m.Mutable(f).Message(), texts)
		case f.Name() == "mount":
			plant(m.Mutable(f).Message(), texts)
		case f.Name() == "mode":
			m.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(sharedMode)))
		case text.String() != "" && f.IsList():
			m.Mutable(f).List().Append(text)
		case text.String() != "":
			m.Set(f, text)
		}
	}
}

// TestSecretsAreNowhere sends secrets of every form in every call of every service, and searches
// all output of the driver for them.
func TestSecretsAreNowhere(t *testing.T) {
	t.Run("hostpath", func(t *testing.T) { secretsAreNowhere(t) })
	t.Run("volumes in memory", func(t *testing.T) { secretsAreNowhere(t, inMemory) })
}

func secretsAreNowhere(t *testing.T, change ...func(*testDriver)) {
	var spans logBuffer
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(&spans))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	d := startDriver(t, append(change, func(d *testDriver) {
		handler := otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(provider))
		d.options = []grpc.ServerOption{grpc.StatsHandler(handler)}
	})...)
	v := d.create("v", capability(sharedMode))
	d.stage(v)
	texts := d.plantable(v)

	var answers strings.Builder
	calls, refused, passed := 0, 0, map[protoreflect.Name]bool{}
	call := func(method protoreflect.MethodDescriptor, change func(req protoreflect.Message)) {
		in, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
		if err != nil {
			t.Fatal(err)
		}
		req := in.New()
		plant(req, texts)
		change(req)
		said, err := d.invoke(method, req.Interface())
		calls++
		if err != nil {
			refused++
			fmt.Fprintln(&answers, err)
		}
		passed[method.Name()] = passed[method.Name()] || err == nil
		if !echoes[method.Name()] {
			fmt.Fprintln(&answers, said)
		}
	}
	for _, method := range methods(t) {
		// Each call is made unchanged, and with legal flags and contexts, with which it runs
		// further.
		call(method, func(protoreflect.Message) {})
		call(method, keepReserved)
		if method.Name() != "CreateVolume" {
			continue
		}
		for _, source := range []*csi.VolumeContentSource{ofVolume(v.id), ofSnapshot(texts["snapshot_id"])} {
			call(method, func(req protoreflect.Message) {
				keepReserved(req)
				r := req.Interface().(*csi.CreateVolumeRequest)
				r.Name, r.VolumeContentSource = "pvc-secret of "+source.String(), source
			})
		}
	}
	for _, name := range []protoreflect.Name{
		"CreateSnapshot", "GetSnapshot", "ListSnapshots", "DeleteSnapshot", "CreateVolumeGroupSnapshot",
		"GetVolumeGroupSnapshot",
		"DeleteVolumeGroupSnapshot", "ControllerModifyVolume", "GetMetadataAllocated", "GetMetadataDelta",
	} {
		if d.memory != nil && !passed[name] {
			t.Errorf("%s was always rejected, so the test proves little", name)
		}
	}
	if calls < 60 || refused == 0 || refused == calls {
		t.Fatalf("%d calls, %d rejected: the test proves nothing", calls, refused)
	}
	metrics, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	d.stop() // so that the log is complete
	said := map[string]string{"the log": d.log.String(), "the answers": answers.String(),
		"the metrics": fmt.Sprint(metrics), "the traces": spans.String()}
	for where, text := range said {
		if strings.Contains(text, "hunter2") {
			at := strings.Index(text, "hunter2")
			t.Errorf("a secret is in %s: …%s…", where, text[max(0, at-300):min(len(text), at+60)])
		}
		if len(text) < 1000 {
			t.Errorf("%s are only %q: the test proves nothing", where, text)
		}
	}
	if !strings.Contains(d.log.String(), "pvc-secret") || !strings.Contains(d.log.String(), stripped) {
		t.Error("the log has no requests: the test proves nothing")
	}
}

// methods returns the methods of every service, with delete calls at the end.
func methods(t *testing.T) (all []protoreflect.MethodDescriptor) {
	t.Helper()
	for _, service := range []protoreflect.FullName{"csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController",
		"csi.v1.SnapshotMetadata", "csi.v1.Node"} {
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(service)
		if err != nil {
			t.Fatal(err)
		}
		methods := descriptor.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			all = append(all, methods.Get(i))
		}
	}
	deletes := func(m protoreflect.MethodDescriptor) int { return strings.Index(string(m.Name()), "Delete") }
	slices.SortStableFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return cmp.Compare(deletes(a), deletes(b))
	})
	return all
}

// plantable returns texts with which calls run further, by the names of fields.
func (d *testDriver) plantable(v *volume) map[protoreflect.Name]string {
	d.Helper()
	texts := map[protoreflect.Name]string{
		"volume_id": v.id, "source_volume_id": v.id, "source_volume_ids": v.id, "node_id": "node-1",
		"name":                "pvc-secret",
		"staging_target_path": v.staging, "target_path": d.path("target"), "volume_path": d.path("target"),
		"snapshot_id": v.snapshot("snapshot").GetSnapshotId(), "base_snapshot_id": "none", "target_snapshot_id": "none",
		"group_snapshot_id": "none", "snapshot_ids": "none",
	}
	if d.memory == nil {
		return texts
	}
	disk := d.create("disk", device(sharedMode))
	g := d.group("group", disk)
	texts["group_snapshot_id"], texts["snapshot_ids"] = g.GetGroupSnapshotId(), memberIDs(g)[0]
	texts["snapshot_id"] = disk.snapshot("of the disk").GetSnapshotId()
	texts["base_snapshot_id"] = disk.snapshot("base").GetSnapshotId()
	texts["target_snapshot_id"] = texts["base_snapshot_id"]
	return texts
}

// invoke makes a call and returns all texts of the response and the error.
func (d *testDriver) invoke(method protoreflect.MethodDescriptor, req proto.Message) (said []any, err error) {
	d.Helper()
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	stream, err := d.conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		d.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		d.Fatal(err)
	}
	out, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		d.Fatal(err)
	}
	for {
		resp := out.New().Interface()
		if err := stream.RecvMsg(resp); errors.Is(err, io.EOF) {
			return said, nil
		} else if err != nil {
			return said, err
		}
		said = append(said, resp)
	}
}

// echoes are the calls whose response repeats a part of the request, as the spec requires.
var echoes = map[protoreflect.Name]bool{"ValidateVolumeCapabilities": true}

// keepReserved removes keys and flags from a request that the driver must reject.
func keepReserved(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case f.Name() == "mount_flags", f.Name() == "volume_content_source", f.Name() == "accessibility_requirements",
			f.Name() == "accessible_topology", f.Name() == "volume_mount_group":
			m.Clear(f)
		case f.IsMap() && !isSecret(f) && f.MapValue().Kind() == protoreflect.StringKind:
			value.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				if !strings.Contains(k.String(), "/") {
					value.Map().Clear(k)
				}
				return true
			})
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range value.List().Len() {
				keepReserved(value.List().Get(i).Message())
			}
		case f.Kind() == protoreflect.MessageKind && !f.IsMap():
			keepReserved(value.Message())
		}
		return true
	})
}

func (d *testDriver) stage(v *volume) {
	d.Helper()
	if err := v.stage(); err != nil {
		d.Fatal(err)
	}
}

func TestRedacted(t *testing.T) {
	got := string(redacted(&csi.NodeStageVolumeRequest{
		VolumeId: "v",
		Secrets:  map[string]string{"user": "u1", "x": "u2"},
		VolumeContext: map[string]string{"share": "//server/share",
			"csi.storage.k8s.io/serviceAccount.tokens": "u3"},
		PublishContext:   map[string]string{"ApiKey": "u4"},
		VolumeCapability: capability(sharedMode, "noexec", "pass=u5", "u6"),
	}))
	want := `{"publish_context":{"ApiKey":"***"},"secrets":{"user":"***","x":"***"},` +
		`"volume_capability":{"access_mode":{"mode":"SINGLE_NODE_MULTI_WRITER"},` +
		`"mount":{"mount_flags":["noexec","***","***"]}},` +
		`"volume_context":{"csi.storage.k8s.io/serviceAccount.tokens":"***","share":"//server/share"},"volume_id":"v"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for name, m := range map[string]any{"nil": nil, "a nil message": (*csi.ProbeRequest)(nil), "no message": 7} {
		if got := string(redacted(m)); got != "null" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestErrorsAreScrubbed(t *testing.T) {
	req := &csi.CreateVolumeRequest{
		Secrets: map[string]string{"a": "correct horse", "b": "correct horse battery", "c": "abc"},
		Parameters: map[string]string{"tokens": `{"aud":{"token":"eyJhbGciOi"},"more":["abcdef"]}`,
			"password": "gehe\nim"},
		VolumeCapabilities: []*csi.VolumeCapability{capability(sharedMode, "noexec", "staple", "user=hunter2")},
	}
	got := newScrubber(req).scrub(`cannot log in with correct horse battery, correct horse, eyJhbGciOi, staple, ` +
		`hunter2, "gehe\nim", abcdef, noexec: abc is no alphabet`)
	if want := `cannot log in with ***, ***, ***, ***, ***, "***", ***, noexec: abc is no alphabet`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzRedacted(f *testing.F) {
	f.Add([]byte{}, "secret")
	wire, _ := proto.Marshal(&csi.NodePublishVolumeRequest{VolumeId: "v",
		VolumeCapability: capability(sharedMode, "ro")})
	f.Add(wire, "s3cr3t")
	f.Fuzz(func(t *testing.T, wire []byte, secret string) {
		var req csi.NodePublishVolumeRequest
		if proto.Unmarshal(wire, &req) != nil || !utf8.ValidString(secret) {
			return
		}
		const snowman = "\u2603" // the snowman must not occur in other texts
		if strings.Contains(req.String(), snowman) {
			return
		}
		req.Secrets = map[string]string{"x": snowman + secret + snowman}
		if strings.Contains(string(redacted(&req)), snowman) ||
			strings.Contains(newScrubber(&req).scrub("failed: "+req.Secrets["x"]), snowman) {
			t.Errorf("%q shows in %s", secret, redacted(&req))
		}
	})
}
