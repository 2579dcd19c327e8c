package driver

import (
	"context"
	"fmt"
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

// plant puts secrets into every field of a request that may hold one, and valid-looking values into the others.
func plant(m protoreflect.Message, d *testDriver, v *volume) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
			entries := m.Mutable(f).Map()
			set := func(k, v string) { entries.Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v)) }
			if isSecret(f) {
				set("anything", planted)
				set("password", planted+"-2")
			} else if f.Name() != "segments" {
				set("csi.storage.k8s.io/serviceAccount.tokens", `{"audience":{"token":"`+planted+`","expirationTimestamp":"2026"}}`)
				set("password", planted)
				set("clientSecret", planted)
			}
		case f.Name() == "mount_flags":
			m.Mutable(f).List().Append(protoreflect.ValueOfString("password=" + planted))
			m.Mutable(f).List().Append(protoreflect.ValueOfString("credentials=" + planted))
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			element := m.Mutable(f).List().AppendMutable().Message()
			plant(element, d, v)
		case f.Kind() == protoreflect.MessageKind && !f.IsMap() && f.ContainingOneof() == nil:
			plant(m.Mutable(f).Message(), d, v)
		case f.Name() == "mount":
			plant(m.Mutable(f).Message(), d, v)
		case f.Name() == "mode":
			m.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(sharedMode)))
		case f.Name() == "volume_id":
			m.Set(f, protoreflect.ValueOfString(v.id))
		case f.Name() == "node_id":
			m.Set(f, protoreflect.ValueOfString("node-1"))
		case f.Name() == "name":
			m.Set(f, protoreflect.ValueOfString("pvc-secret"))
		case f.Name() == "staging_target_path":
			m.Set(f, protoreflect.ValueOfString(v.staging))
		case f.Name() == "target_path", f.Name() == "volume_path":
			m.Set(f, protoreflect.ValueOfString(d.path("target")))
		}
	}
}

// TestSecretsAreNowhere sends secrets of every shape through every call of every service, and looks for them in
// everything that the driver says.
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
		d.options = []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(provider)))}
	})...)
	v := d.create("v", capability(sharedMode))
	d.stage(v)

	var answers strings.Builder
	calls, refused := 0, 0
	for _, name := range []protoreflect.FullName{"csi.v1.Identity", "csi.v1.Controller", "csi.v1.Node"} {
		descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		methods := descriptor.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			method := methods.Get(i)
			// Once as it is, and once with legal flags and contexts, so that the call gets further.
			for _, legal := range []bool{false, true} {
				in, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				out, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
				if err != nil {
					t.Fatal(err)
				}
				req, resp := in.New(), out.New().Interface()
				plant(req, d, v)
				if legal {
					keepReserved(req)
				}
				err = d.conn.Invoke(context.Background(), fmt.Sprintf("/%s/%s", name, method.Name()), req.Interface(), resp)
				calls++
				if err != nil {
					refused++
					fmt.Fprintln(&answers, err)
				} else if !echoes[method.Name()] {
					fmt.Fprintln(&answers, resp)
				}
			}
		}
	}
	if calls < 60 || refused == 0 || refused == calls {
		t.Fatalf("%d calls, %d refused: that proves nothing", calls, refused)
	}
	metrics, err := d.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	d.stop() // so that everything is said
	said := map[string]string{"the log": d.log.String(), "the answers": answers.String(), "the metrics": fmt.Sprint(metrics), "the traces": spans.String()}
	for where, text := range said {
		if strings.Contains(text, "hunter2") {
			at := strings.Index(text, "hunter2")
			t.Errorf("a secret is in %s: …%s…", where, text[max(0, at-300):min(len(text), at+60)])
		}
		if len(text) < 1000 {
			t.Errorf("%s are only %q: that proves nothing", where, text)
		}
	}
	if !strings.Contains(d.log.String(), "pvc-secret") || !strings.Contains(d.log.String(), stripped) {
		t.Error("the log has no requests: that proves nothing")
	}
}

// echoes are the calls whose answer repeats what the CO sent, by the spec.
var echoes = map[protoreflect.Name]bool{"ValidateVolumeCapabilities": true}

// keepReserved takes out of a request what the driver must refuse.
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
		VolumeId:         "v",
		Secrets:          map[string]string{"user": "u1", "x": "u2"},
		VolumeContext:    map[string]string{"share": "//server/share", "csi.storage.k8s.io/serviceAccount.tokens": "u3"},
		PublishContext:   map[string]string{"ApiKey": "u4"},
		VolumeCapability: capability(sharedMode, "noexec", "pass=u5", "u6"),
	}))
	want := `{"publish_context":{"ApiKey":"***"},"secrets":{"user":"***","x":"***"},` +
		`"volume_capability":{"access_mode":{"mode":"SINGLE_NODE_MULTI_WRITER"},"mount":{"mount_flags":["noexec","***","***"]}},` +
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
		Secrets:            map[string]string{"a": "correct horse", "b": "correct horse battery", "c": "abc"},
		Parameters:         map[string]string{"tokens": `{"aud":{"token":"eyJhbGciOi"},"more":["abcdef"]}`, "password": "gehe\nim"},
		VolumeCapabilities: []*csi.VolumeCapability{capability(sharedMode, "noexec", "staple", "user=hunter2")},
	}
	got := newScrubber(req).scrub(`can't log in with correct horse battery, correct horse, eyJhbGciOi, staple, hunter2, "gehe\nim", abcdef, noexec: abc is no alphabet`)
	if want := `can't log in with ***, ***, ***, ***, ***, "***", ***, noexec: abc is no alphabet`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzRedacted(f *testing.F) {
	f.Add([]byte{}, "secret")
	wire, _ := proto.Marshal(&csi.NodePublishVolumeRequest{VolumeId: "v", VolumeCapability: capability(sharedMode, "ro")})
	f.Add(wire, "s3cr3t")
	f.Fuzz(func(t *testing.T, wire []byte, secret string) {
		var req csi.NodePublishVolumeRequest
		if proto.Unmarshal(wire, &req) != nil || !utf8.ValidString(secret) {
			return
		}
		const snowman = "\u2603" // in nothing else, or the test would find it there
		if strings.Contains(req.String(), snowman) {
			return
		}
		req.Secrets = map[string]string{"x": snowman + secret + snowman}
		if strings.Contains(string(redacted(&req)), snowman) || strings.Contains(newScrubber(&req).scrub("failed: "+req.Secrets["x"]), snowman) {
			t.Errorf("%q shows in %s", secret, redacted(&req))
		}
	})
}
