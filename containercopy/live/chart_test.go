package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/test/cluster/chart"
)

// at returns a value of an object, or nil.
func at[T any](o any, path ...any) (value T) {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, _ := o.(map[string]any)
			o = m[s]
		case int:
			l, _ := o.([]any)
			if s >= len(l) {
				return value
			}
			o = l[s]
		}
	}
	value, _ = o.(T)
	return value
}

// render returns the objects of the chart by kind and name.
func render(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	bin, err := chart.Programs(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	out, err := chart.Helm(t.Context(), bin, append([]string{"template", "copy", filepath.Join(folder(), "chart"), "--namespace=ns"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]any{}
	for r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(out))); ; {
		doc, err := r.Read()
		if err != nil {
			break
		}
		text, err := yaml.ToJSON(doc)
		if err != nil {
			t.Fatal(err)
		}
		var o map[string]any
		if err := json.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		if o != nil {
			all[at[string](o, "kind")+"/"+at[string](o, "metadata", "name")] = o
		}
	}
	return all
}

// TestPrivileges: the agent has its four capabilities, one path of the node, and no access to the
// API; the API server has no privilege.
func TestPrivileges(t *testing.T) {
	all := render(t)
	pod := at[map[string]any](all["DaemonSet/copy-causeway-copy-agent"], "spec", "template", "spec")
	container := at[map[string]any](pod, "containers", 0)
	security, _ := json.Marshal(container["securityContext"])
	if want := `{"allowPrivilegeEscalation":false,"capabilities":{"add":["SYS_PTRACE","SETUID","SETGID","SETFCAP"],"drop":["ALL"]},"readOnlyRootFilesystem":true}`; string(security) != want {
		t.Errorf("the agent: %s", security)
	}
	var paths []string
	for _, v := range at[[]any](pod, "volumes") {
		if p := at[string](v, "hostPath", "path"); p != "" {
			paths = append(paths, p)
		}
	}
	if !slices.Equal(paths, []string{"/run/containerd"}) || at[bool](pod, "hostNetwork") || !at[bool](pod, "hostPID") || pod["automountServiceAccountToken"] != false {
		t.Errorf("the agent has the paths %q, hostPID %v, token %v", paths, pod["hostPID"], pod["automountServiceAccountToken"])
	}
	for name, o := range all {
		for _, s := range at[[]any](o, "subjects") {
			if at[string](s, "name") != "copy-causeway-copy-apiserver" {
				t.Errorf("%s is for %v", name, s)
			}
		}
		for label := range at[map[string]any](o, "metadata", "labels") {
			if strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to") {
				t.Errorf("%s has the label %s", name, label)
			}
		}
	}
	server := at[map[string]any](all["Deployment/copy-causeway-copy-apiserver"], "spec", "template", "spec")
	security, _ = json.Marshal(at[map[string]any](server, "containers", 0, "securityContext"))
	if want := `{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},"readOnlyRootFilesystem":true}`; string(security) != want {
		t.Errorf("the API server: %s", security)
	}
	if at[float64](all["PodDisruptionBudget/copy-causeway-copy-apiserver"], "spec", "maxUnavailable") != 1 {
		t.Error("no disruption budget")
	}
	if off := render(t, "--set=networkPolicy.enabled=false,apiserver.budget=false"); off["NetworkPolicy/copy-causeway-copy-agent"] != nil || off["PodDisruptionBudget/copy-causeway-copy-apiserver"] != nil {
		t.Error("objects that are switched off are rendered")
	}
}

// identity writes a rendered secret to a directory, and opens it.
func identity(t *testing.T, all map[string]map[string]any, part string) *peertls.Identity {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		content := decode(t, at[string](all["Secret/copy-causeway-copy-"+part+"-generated"], "data", name))
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	id, err := peertls.Open(dir, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func decode(t *testing.T, text string) []byte {
	t.Helper()
	content, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(content) == 0 {
		t.Fatalf("%q: %v", text, err)
	}
	return content
}

// TestCertificates: the generated certificates connect the API server with agents and no agent with
// another one, and the bundle of the APIService verifies the serving certificate.
func TestCertificates(t *testing.T) {
	all := render(t)
	agent, client := identity(t, all, "agents"), identity(t, all, "client")
	const name = "copy-causeway-copy-agent"
	if err := handshake(client.ClientConfig(name, "http/1.1"), agent.ServerConfig("causeway-copy", "http/1.1")); err != nil {
		t.Error(err)
	}
	if handshake(agent.ClientConfig(name, "http/1.1"), agent.ServerConfig("causeway-copy", "http/1.1")) == nil {
		t.Error("an agent calls an agent")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(decode(t, at[string](all["APIService/v1alpha1.copy.causeway.dev"], "spec", "caBundle")))
	data := func(k string) []byte {
		return decode(t, at[string](all["Secret/copy-causeway-copy-serving-generated"], "data", k))
	}
	serving, err := tls.X509KeyPair(data("tls.crt"), data("tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := serving.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "copy-causeway-copy-apiserver.ns.svc"}); err != nil {
		t.Error(err)
	}
}

// handshake returns the error of the client, or else that of the server. A pipe has no buffer: the
// alert of a client and the messages of the server would wait for each other.
func handshake(client, server *tls.Config) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	result := make(chan error, 1)
	go func() {
		far, err := listener.Accept()
		if err != nil {
			result <- err
			return
		}
		defer far.Close()
		result <- tls.Server(far, server).HandshakeContext(context.Background())
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), client)
	if err != nil {
		return err
	}
	defer conn.Close()
	return <-result
}

// TestOtherSources: with cert-manager and with secrets of the user the chart has no key.
func TestOtherSources(t *testing.T) {
	for args, secret := range map[string]string{
		"--set=certificates.source=cert-manager": "copy-causeway-copy-agents", "--set=certificates.source=secrets,certificates.caBundle=x": "copy-causeway-copy-agents",
	} {
		all := render(t, args)
		for name := range all {
			if strings.HasPrefix(name, "Secret/") {
				t.Errorf("%s: %s", args, name)
			}
		}
		found := false
		for _, v := range at[[]any](all["DaemonSet/copy-causeway-copy-agent"], "spec", "template", "spec", "volumes") {
			found = found || at[string](v, "secret", "secretName") == secret
		}
		if !found {
			t.Errorf("%s: the agent has no secret %s", args, secret)
		}
	}
}
