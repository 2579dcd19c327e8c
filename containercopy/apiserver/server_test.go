package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/containercopy/archive"
	copystream "github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/peertls"
)

// fakeAgent is the agent of node-1. It records its calls; its streams send "data" or await data.
type fakeAgent struct {
	v1alpha1.UnimplementedContainerCopyServer
	err     error // of the calls
	early   bool  // the stream to a container ends with an error at once
	url     string
	tickets *copystream.Tickets[bool]

	mu       sync.Mutex
	calls    []any
	canceled []string
	heads    []http.Header // of the streams
}

func (a *fakeAgent) prepare(ctx context.Context, req any, from bool) (string, error) {
	a.mu.Lock()
	a.calls = append(a.calls, req)
	a.mu.Unlock()
	if a.err != nil {
		return "", a.err
	}
	p, _ := peer.FromContext(ctx)
	token, _, err := a.tickets.Issue(copystream.Fingerprint(peertls.Certificate(p.AuthInfo)), from)
	return a.url + copystream.Path + token, err
}

func (a *fakeAgent) CopyFromContainer(ctx context.Context, req *v1alpha1.CopyFromContainerRequest) (*v1alpha1.CopyFromContainerResponse, error) {
	u, err := a.prepare(ctx, req, true)
	return &v1alpha1.CopyFromContainerResponse{Url: u, CopyId: "copy-1"}, err
}

func (a *fakeAgent) CopyToContainer(ctx context.Context, req *v1alpha1.CopyToContainerRequest) (*v1alpha1.CopyToContainerResponse, error) {
	u, err := a.prepare(ctx, req, false)
	return &v1alpha1.CopyToContainerResponse{Url: u, CopyId: "copy-2"}, err
}

func (a *fakeAgent) CancelCopy(_ context.Context, req *v1alpha1.CancelCopyRequest) (*v1alpha1.CancelCopyResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.canceled = append(a.canceled, req.CopyId)
	return &v1alpha1.CancelCopyResponse{}, nil
}

func (a *fakeAgent) stream(r *http.Request, from bool, client *copystream.Socket) {
	a.mu.Lock()
	a.heads = append(a.heads, r.Header.Clone())
	a.mu.Unlock()
	defer client.Close()
	s := wire.NewStream(client)
	switch {
	case from:
		s.Write([]byte("data"))
		s.Send(wire.EndOf(archive.Sum{Size: 4}, archive.Counts{Entries: 1}))
		s.Await(wire.Ack, nil)
	case a.early:
		s.Send(wire.Message{Type: wire.Result, Code: wire.PermissionDenied})
		for { // as the relay of an agent does
			if _, err := client.Read(); err != nil {
				return
			}
		}
	default:
		io.Copy(io.Discard, s.Body(nil))
	}
	s.Send(wire.Message{Type: wire.Result, Size: 4})
}

// serve serves the agent, and returns its address and its port.
func (a *fakeAgent) serve(t *testing.T, certificates string) (host string, port int) {
	t.Helper()
	id := open(t, filepath.Join(certificates, "nodes", "agents"))
	calls, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(id.Server("copies")))
	v1alpha1.RegisterContainerCopyServer(g, a)
	go g.Serve(calls)
	t.Cleanup(g.Stop)
	a.tickets = copystream.NewTickets(func(bool) {})
	t.Cleanup(a.tickets.Close)
	streams := httptest.NewUnstartedServer(copystream.Handler(a.tickets, a.stream))
	streams.Listener = tls.NewListener(streams.Listener, id.ServerConfig("copies", "http/1.1"))
	streams.Start()
	t.Cleanup(streams.Close)
	a.url = strings.Replace(streams.URL, "http:", "https:", 1)
	host, text, _ := net.SplitHostPort(calls.Addr().String())
	port, _ = strconv.Atoi(text)
	return host, port
}

func open(t *testing.T, dir string) *peertls.Identity {
	t.Helper()
	id, err := peertls.Open(dir, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// connects is an admission plugin that records the CONNECT requests, and refuses those of a
// container.
type connects struct {
	mu   sync.Mutex
	seen []admission.Attributes
}

func (*connects) Handles(o admission.Operation) bool { return o == admission.Connect }

func (c *connects) Validate(_ context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// As policies and webhooks do.
	v, err := admission.NewVersionedAttributes(a, a.GetKind(), o)
	if err != nil {
		return err
	}
	if text, err := json.Marshal(v.VersionedObject.Object()); err != nil || !strings.Contains(string(text), `"kind":"PodCopy`) || !strings.Contains(string(text), `"path":"/`) {
		return fmt.Errorf("the object of a webhook: %s, %w", text, err)
	}
	c.seen = append(c.seen, a)
	if o, ok := a.GetObject().(*options.PodCopyFromOptions); ok && o.Container == "refused" {
		return admission.NewForbidden(a, errors.New("by a policy"))
	}
	return nil
}

// events is a sink of audit events.
type events struct {
	mu  sync.Mutex
	all []*audit.Event
}

func (e *events) ProcessEvents(all ...*audit.Event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range all {
		e.all = append(e.all, event.DeepCopy())
	}
	return true
}

func (*events) Run(<-chan struct{}) error { return nil }
func (*events) Shutdown()                 {}
func (*events) String() string            { return "events" }

// scene is a server with its agent.
type scene struct {
	url    string
	agent  *fakeAgent
	admit  *connects
	copies *Copies
	client *fake.Clientset
	events *events
}

// newScene serves the API through the filters of an API server. The user is in the header User;
// those whose name begins with "exec" may exec.
func newScene(t *testing.T, change ...func(c *server.Config)) *scene {
	t.Helper()
	dir := t.TempDir()
	if _, err := peertls.Make(dir, peertls.MakeOptions{Client: "copies", Nodes: []string{"agents"}}); err != nil {
		t.Fatal(err)
	}
	s := &scene{agent: &fakeAgent{}, admit: &connects{}, events: &events{}}
	host, port := s.agent.serve(t, dir)
	s.client = fake.NewClientset(
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "closed", Labels: map[string]string{"deny": ""}}},
		pod("ns", "p", "node-1", nil), pod("ns", "denied", "node-1", map[string]string{"deny": "true"}),
		pod("ns", "open", "node-1", map[string]string{"deny": "false"}), pod("closed", "p", "node-1", nil), pod("ns", "far", "node-2", nil),
		agentPod("old", "node-1", "127.0.0.9", core.ConditionFalse), agentPod("new", "node-1", host, core.ConditionTrue))
	authorize := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetResource() == "pods" && (a.GetVerb() != "create" || a.GetSubresource() != "exec" || !strings.HasPrefix(a.GetUser().GetName(), "exec")) {
			return authorizer.DecisionNoOpinion, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	})
	s.copies = &Copies{Core: s.client.CoreV1(), Authorizer: authorize, Deny: "deny",
		Agents: Agents{Pods: byNode{s.client.CoreV1().Pods("system")}, Selector: "app=agent", Port: port, Name: "agents", Identity: open(t, filepath.Join(dir, "router"))}}
	c := server.NewConfig(Codecs)
	c.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.0", "1.0", "1.0")
	c.ExternalAddress, c.LoopbackClientConfig = "127.0.0.1:1", &rest.Config{}
	Configure(c)
	for _, f := range change {
		f(c)
	}
	c.Authentication.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		name := r.Header.Get("User")
		return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, name != "", nil
	})
	c.Authorization.Authorizer, c.AdmissionControl = authorize, s.admit
	c.AuditPolicyRuleEvaluator = policy.NewFakePolicyRuleEvaluator(audit.LevelMetadata, nil)
	c.AuditBackend = s.events
	g, err := c.Complete(nil).New("test", server.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(g, s.copies.Storage()); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(g.PrepareRun().Handler)
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

// byNode selects pods by their node: the fake client does not.
type byNode struct{ corev1.PodInterface }

func (b byNode) List(ctx context.Context, o metav1.ListOptions) (*core.PodList, error) {
	list, err := b.PodInterface.List(ctx, o)
	if err != nil {
		return nil, err
	}
	list.Items = slices.DeleteFunc(list.Items, func(p core.Pod) bool { return o.FieldSelector != "spec.nodeName="+p.Spec.NodeName })
	return list, nil
}

// pod is a pod with containers in several states.
func pod(namespace, name, node string, labels map[string]string) *core.Pod {
	running := func(name string) core.ContainerStatus {
		return core.ContainerStatus{Name: name, ContainerID: "containerd://id-" + name, State: core.ContainerState{Running: &core.ContainerStateRunning{}}}
	}
	ended := core.ContainerStatus{Name: "ended", ContainerID: "containerd://id-ended", State: core.ContainerState{Terminated: &core.ContainerStateTerminated{Reason: "Error", ExitCode: 3}}}
	debug := core.EphemeralContainer{EphemeralContainerCommon: core.EphemeralContainerCommon{Name: "debug"}}
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid", Labels: labels, Annotations: map[string]string{defaultContainer: "main"}},
		Spec: core.PodSpec{NodeName: node, Containers: []core.Container{{Name: "first"}, {Name: "main"}, {Name: "ended"}, {Name: "waits"}, {Name: "refused"}},
			InitContainers: []core.Container{{Name: "sidecar"}}, EphemeralContainers: []core.EphemeralContainer{debug}},
		Status: core.PodStatus{ContainerStatuses: []core.ContainerStatus{running("first"), running("main"), ended, {Name: "waits", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}, running("refused")},
			InitContainerStatuses: []core.ContainerStatus{running("sidecar")}, EphemeralContainerStatuses: []core.ContainerStatus{running("debug")}},
	}
}

func agentPod(name, node, ip string, ready core.ConditionStatus) *core.Pod {
	return &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: name, Labels: map[string]string{"app": "agent"}}, Spec: core.PodSpec{NodeName: node},
		Status: core.PodStatus{PodIP: ip, Conditions: []core.PodCondition{{Type: core.PodReady, Status: ready}}}}
}

// dial begins a copy as a user. After an error status has the answer.
func (s *scene) dial(t *testing.T, user, path string, v url.Values) (stream *wire.Stream, answer metav1.Status, header http.Header) {
	t.Helper()
	d := websocket.Dialer{Subprotocols: []string{wire.Subprotocol}}
	head := http.Header{}
	if user != "" {
		head.Set("User", user)
	}
	head.Set("Cookie", "secret")
	conn, resp, err := d.Dial(strings.Replace(s.url, "http", "ws", 1)+path+"?"+v.Encode(), head)
	if err == nil {
		t.Cleanup(func() { conn.Close() })
		return wire.NewStream(copystream.NewSocket(conn)), answer, nil
	}
	if resp == nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatalf("%s: %q", resp.Status, text)
	}
	if int(answer.Code) != resp.StatusCode {
		t.Errorf("the status has code %d, the response %d", answer.Code, resp.StatusCode)
	}
	return nil, answer, resp.Header
}

func fromPath(namespace, pod string) string { return options.URLPath(options.From, namespace, pod) }

// TestACopyFromAContainer: the stream passes, also after the limit of other requests; agent,
// admission and audit see the copy, and the agent does not see the headers of the user.
func TestACopyFromAContainer(t *testing.T) {
	s := newScene(t, func(c *server.Config) { c.RequestTimeout = time.Second }) // of requests that are no streams
	o := options.PodCopyFromOptions{Path: "/a b", SHA256: true}
	stream, answer, _ := s.dial(t, "exec-me", fromPath("ns", "p"), o.Values())
	if stream == nil {
		t.Fatalf("%+v", answer)
	}
	body := stream.Body(nil)
	if got, err := io.ReadAll(body); string(got) != "data" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	time.Sleep(2 * time.Second)
	if err := stream.Send(wire.Message{Type: wire.Ack}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Await(wire.Result, nil); err != nil || m.Size != 4 {
		t.Errorf("Await = %+v, %v", m, err)
	}
	req := s.agent.calls[0].(*v1alpha1.CopyFromContainerRequest)
	if req.ContainerId != "id-main" || req.Path != "/a b" || !req.Sha256 || req.Pod.Namespace != "ns" || req.Pod.Name != "p" || req.Pod.Uid != "uid" ||
		req.Caller.Name != "exec-me" || req.Caller.AuditId == "" {
		t.Errorf("the call: %v", req)
	}
	for name := range s.agent.heads[0] {
		if !strings.HasPrefix(name, "Sec-Websocket-") && !slices.Contains([]string{"Connection", "Upgrade", "X-Forwarded-For", "User-Agent"}, name) {
			t.Errorf("the agent gets the header %s", name)
		}
	}
	if a := s.admit.seen[0]; a.GetName() != "p" || a.GetNamespace() != "ns" || a.GetSubresource() != "proxy" || a.GetResource().Resource != "podcopiesfrom" ||
		a.GetUserInfo().GetName() != "exec-me" || a.GetObject().(*options.PodCopyFromOptions).Path != "/a b" {
		t.Errorf("the admission: %+v", a)
	}
	if err := s.copies.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	s.wantEvent(t, "copy-1")
}

// TestStaticPods: the kubelet labels their containers with the UID of the static pod, which the
// mirror at kube-apiserver has in an annotation.
func TestStaticPods(t *testing.T) {
	s := newScene(t)
	mirror := pod("ns", "static", "node-1", nil)
	mirror.Annotations[core.MirrorPodAnnotationKey] = "0f0f"
	if _, err := s.client.CoreV1().Pods("ns").Create(t.Context(), mirror, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := options.PodCopyFromOptions{Path: "/a"}
	stream, answer, _ := s.dial(t, "exec-me", fromPath("ns", "static"), o.Values())
	if stream == nil {
		t.Fatalf("%+v", answer)
	}
	if req := s.agent.calls[0].(*v1alpha1.CopyFromContainerRequest); req.Pod.Uid != "0f0f" {
		t.Errorf("the call: %v", req)
	}
}

// wantEvent awaits an audit event with the ID of a copy.
func (s *scene) wantEvent(t *testing.T, id string) {
	t.Helper()
	await.True(t, "an audit event has the copy "+id, func() bool {
		s.events.mu.Lock()
		defer s.events.mu.Unlock()
		for _, e := range s.events.all {
			if e.Annotations["copy.causeway.dev/copy-id"] == id && e.Annotations["copy.causeway.dev/container-id"] != "" && e.User.Username == "exec-me" {
				return true
			}
		}
		return false
	})
}

func TestACopyToAContainer(t *testing.T) {
	s := newScene(t)
	size, sum := int64(4), uint32(7)
	o := options.PodCopyToOptions{Container: "sidecar", Path: "/x", Contents: true, Size: &size, Checksum: &sum, SHA256: strings.Repeat("ab", 32),
		SHA256AtEnd: true, Overwrite: options.Files, PreserveMode: true, PreserveTimes: true, PreserveOwner: true}
	stream, answer, _ := s.dial(t, "exec-me", options.URLPath(options.To, "ns", "open"), o.Values())
	if stream == nil {
		t.Fatalf("%+v", answer)
	}
	stream.Write([]byte("data"))
	stream.Send(wire.EndOf(archive.Sum{Size: 4}, archive.Counts{Entries: 1}))
	if m, err := stream.Await(wire.Result, nil); err != nil || m.Size != 4 {
		t.Errorf("Await = %+v, %v", m, err)
	}
	req := s.agent.calls[0].(*v1alpha1.CopyToContainerRequest)
	if req.ContainerId != "id-sidecar" || req.Path != "/x" || !req.Contents || !req.Declared || req.Size != 4 || req.Checksum != 7 ||
		fmt.Sprintf("%x", req.Sha256) != strings.Repeat("ab", 32) || !req.Sha256AtEnd || req.Overwrite != v1alpha1.Overwrite_FILES || !req.PreserveMode || !req.PreserveTimes || !req.PreserveOwner {
		t.Errorf("the call: %v", req)
	}
	s.wantEvent(t, "copy-2")
}

// TestRefusals: a request that is refused does not reach the agent.
func TestRefusals(t *testing.T) {
	s := newScene(t)
	windows, selects := pod("ns", "windows", "node-1", nil), pod("ns", "selects", "node-1", nil)
	windows.Spec.OS = &core.PodOS{Name: core.Windows}
	selects.Spec.NodeSelector = map[string]string{core.LabelOSStable: "windows"}
	for _, p := range []*core.Pod{windows, selects} {
		if _, err := s.client.CoreV1().Pods("ns").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		user, path, query string
		code              int32
		words             string
	}{
		"no user":                 {"", fromPath("ns", "p"), "path=/x", 401, "Unauthorized"},
		"no right to exec":        {"reader", fromPath("ns", "p"), "path=/x", 403, "pods/exec"},
		"no pod":                  {"exec-me", fromPath("ns", "none"), "path=/x", 404, `"ns/none" not found`},
		"label of the pod":        {"exec-me", fromPath("ns", "denied"), "path=/x", 403, "the pod has the label deny"},
		"label of the namespace":  {"exec-me", fromPath("closed", "p"), "path=/x", 403, "the namespace has the label deny"},
		"admission":               {"exec-me", fromPath("ns", "p"), "path=/x&container=refused", 403, "by a policy"},
		"unknown container":       {"exec-me", fromPath("ns", "p"), "path=/x&container=none", 400, "it has first, main"},
		"container that ended":    {"exec-me", fromPath("ns", "p"), "path=/x&container=ended", 409, "ended is not running: terminated, Error, exit code 3"},
		"container that waits":    {"exec-me", fromPath("ns", "p"), "path=/x&container=waits", 409, "waits is not running: waiting, ImagePullBackOff"},
		"unknown parameter":       {"exec-me", fromPath("ns", "p"), "path=/x&follow=true", 400, "unknown parameter"},
		"node without an agent":   {"exec-me", fromPath("ns", "far"), "path=/x", 503, "node node-2 has no agent"},
		"pod of Windows":          {"exec-me", fromPath("ns", "windows"), "path=/x", 501, "for Windows nodes"},
		"selector of Windows":     {"exec-me", fromPath("ns", "selects"), "path=/x", 501, "for Windows nodes"},
		"size without a checksum": {"exec-me", options.URLPath(options.To, "ns", "p"), "path=/x&size=1", 400, "need each other"},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := url.ParseQuery(tc.query)
			stream, answer, _ := s.dial(t, tc.user, tc.path, v)
			if stream != nil || answer.Code != tc.code || !strings.Contains(answer.Message, tc.words) {
				t.Errorf("the answer is %+v, want %d with %q", answer, tc.code, tc.words)
			}
		})
	}
	if len(s.agent.calls) > 0 {
		t.Errorf("calls: %v", s.agent.calls)
	}
}

// TestErrorsOfTheAgent: the client gets the code of HTTP for the code of gRPC.
func TestErrorsOfTheAgent(t *testing.T) {
	s := newScene(t)
	for code, want := range map[codes.Code]int32{codes.InvalidArgument: 400, codes.NotFound: 404, codes.FailedPrecondition: 409, codes.ResourceExhausted: 429,
		codes.OutOfRange: 413, codes.Unimplemented: 501, codes.Unavailable: 503, codes.DeadlineExceeded: 504, codes.Internal: 500, codes.Unknown: 500} {
		s.agent.err = status.Error(code, "the reason")
		stream, answer, head := s.dial(t, "exec-me", fromPath("ns", "p"), url.Values{"path": {"/x"}})
		if stream != nil || answer.Code != want || !strings.Contains(answer.Message, "the reason") {
			t.Errorf("%s: %+v, want %d", code, answer, want)
		}
		if retry := head.Get("Retry-After"); (retry == "5") != (want == 429) {
			t.Errorf("%s: Retry-After %q", code, retry)
		}
	}
}

// TestOtherMethods: the resources have one method, and a request that is no handshake is an error.
func TestOtherMethods(t *testing.T) {
	s := newScene(t)
	for _, tc := range []struct {
		method, path string
		code         int
	}{{"POST", fromPath("ns", "p"), 405}, {"PUT", fromPath("ns", "p"), 405}, {"GET", fromPath("ns", "p") + "?path=/x", 400},
		{"GET", strings.TrimSuffix(fromPath("ns", "p"), "/proxy"), 404}, {"GET", "/apis/copy.causeway.dev/v1alpha1", 200}, {"GET", "/openapi/v2", 200}} {
		req, _ := http.NewRequest(tc.method, s.url+tc.path, nil)
		req.Header.Set("User", "exec-me")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.code {
			t.Errorf("%s %s: %s, want %d", tc.method, tc.path, resp.Status, tc.code)
		}
	}
	if len(s.agent.calls) > 0 { // each would take a slot
		t.Errorf("calls: %v", s.agent.calls)
	}
}

// TestAStreamThatDoesNotBegin is an error of the API, and gives its slot back.
func TestAStreamThatDoesNotBegin(t *testing.T) {
	s := newScene(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	right := s.agent.url
	for name, tc := range map[string]struct{ url, words string }{
		"no listener":     {"https://127.0.0.1:1", "refused"},
		"another address": {"https://127.0.0.9:1", "invalid URL"},
		"another path":    {right + copystream.Path + "x", "404"},
	} {
		s.agent.url, s.agent.canceled = tc.url, nil
		stream, answer, _ := s.dial(t, "exec-me", fromPath("ns", "p"), url.Values{"path": {"/x"}})
		if stream != nil || answer.Code != 503 || !strings.Contains(answer.Message, "node-1") || !strings.Contains(answer.Message, tc.words) {
			t.Errorf("%s: %+v, want 503 with %q", name, answer, tc.words)
		}
		if !slices.Equal(s.agent.canceled, []string{"copy-1"}) {
			t.Errorf("%s: canceled %q", name, s.agent.canceled)
		}
	}
}

// TestURLsOfAgents: an agent must not direct the server to another address or path.
func TestURLsOfAgents(t *testing.T) {
	for text, want := range map[string]bool{
		"https://10.0.0.1:9841/copy/token": true, "http://10.0.0.1:9841/copy/token": false, "https://10.0.0.2:9841/copy/token": false,
		"https://10.0.0.1:9841/other": false, "https://u@10.0.0.1:9841/copy/x": false, "https://10.0.0.1/copy/x?y": false, "https://10.0.0.1/copy/x#y": false,
		"https://name:9841/copy/token": false, "https:///copy/token": false, "": false, ":": false,
	} {
		if u, err := checkURL(text, "10.0.0.1"); (err == nil) != want {
			t.Errorf("%q: %v, %v", text, u, err)
		}
	}
	if u, err := checkURL("https://name:9841/copy/token", "another name"); err == nil {
		t.Errorf("a name: %v", u)
	}
	if _, err := checkURL("https://[fd00::1]:9841/copy/token", "fd00:0::1"); err != nil {
		t.Error(err)
	}
}

// TestAResultOfAnAgentThatReadsNoMore arrives, although the client still sends.
func TestAResultOfAnAgentThatReadsNoMore(t *testing.T) {
	s := newScene(t)
	s.agent.early = true
	stream, answer, _ := s.dial(t, "exec-me", options.URLPath(options.To, "ns", "p"), url.Values{"path": {"/x"}})
	if stream == nil {
		t.Fatalf("%+v", answer)
	}
	go func() {
		for {
			if _, err := stream.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	var f *wire.Failure
	if m, err := stream.Await(wire.Result, nil); !errors.As(err, &f) || f.Code != wire.PermissionDenied {
		t.Errorf("Await = %+v, %v", m, err)
	}
}

// TestWait: a server that stops waits for its streams, for a time.
func TestWait(t *testing.T) {
	s := newScene(t)
	stream, answer, _ := s.dial(t, "exec-me", options.URLPath(options.To, "ns", "p"), url.Values{"path": {"/x"}})
	if stream == nil {
		t.Fatalf("%+v", answer)
	}
	await.True(t, "the handler has begun", func() bool {
		s.agent.mu.Lock()
		defer s.agent.mu.Unlock()
		return len(s.agent.heads) > 0
	})
	limited, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.copies.Wait(limited); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait with a stream = %v", err)
	}
	stream.Send(wire.EndOf(archive.Sum{}, archive.Counts{}))
	if _, err := stream.Await(wire.Result, nil); err != nil {
		t.Error(err)
	}
	if err := s.copies.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
