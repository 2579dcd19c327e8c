package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

var write = flag.Bool("write", false, "write the README of the chart instead of comparing it")

// programs returns the directory of Helm.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := chart.Programs(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// TestReadme: the README of the chart is the output of helm-docs.
func TestReadme(t *testing.T) {
	dir := filepath.Join(folder(), "chart")
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs(t), "helm-docs"), "--dry-run", "--chart-search-root="+dir,
		"--log-level=warning", "--sort-values-order=file")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("%v: %s", err, &complaints)
	}
	path, want := filepath.Join(dir, "README.md"), strings.TrimSpace(string(out))+"\n"
	if *write {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != want {
		t.Errorf("%s, %v, is not the output of helm-docs: run go test -run TestReadme . -args -write in containercopy/live", path, err)
	}
}

// strict decodes an object as its kind; a field that its kind does not have is an error.
var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// unknown are the kinds that are not in the scheme: of cert-manager, and of the aggregator.
var unknown = []string{"APIService", "Certificate", "Issuer"}

// global are the kinds without a namespace.
var global = []string{"APIService", "ClusterRole", "ClusterRoleBinding"}

// TestConfigurations: the chart passes helm lint with each file of values in chart/ci, and each
// object has the fields of its kind only.
func TestConfigurations(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(folder(), "chart", "ci", "*-values.yaml"))
	if err != nil || len(paths) < 4 {
		t.Fatalf("%q, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), "-values.yaml"), func(t *testing.T) {
			if out, err := chart.Helm(t.Context(), programs(t), "lint", "--strict", filepath.Join(folder(), "chart"), "--values="+path); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			for name, o := range render(t, "--values="+path) {
				text, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				// So that kubectl apply of the rendered objects needs no namespace, with one of
				// them in kube-system.
				if kind := at[string](o, "kind"); !slices.Contains(global, kind) && at[string](o, "metadata", "namespace") == "" {
					t.Errorf("%s has no namespace", name)
				}
				if _, _, err := strict.Decode(text, nil, nil); err != nil && !slices.Contains(unknown, at[string](o, "kind")) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestNamesThatLookLikeNumbers: a namespace and the names in values may be of digits, and stay
// strings.
func TestNamesThatLookLikeNumbers(t *testing.T) {
	all := render(t, "--namespace=2024", `--set-json=images.pullSecrets=["1"]`, `--set-json=agent.priorityClassName="1"`)
	for name, o := range all {
		if n := at[any](o, "metadata", "namespace"); n != nil && n != "kube-system" && n != "2024" {
			t.Errorf("%s is in %v", name, n)
		}
		for _, s := range at[[]any](o, "subjects") {
			if at[string](s, "namespace") != "2024" {
				t.Errorf("%s: %v", name, s)
			}
		}
	}
	if got := at[string](all["APIService/v1alpha1.copy.causeway.dev"], "spec", "service", "namespace"); got != "2024" {
		t.Errorf("the service of the APIService is in %q", got)
	}
	if pod := at[any](all["DaemonSet/copy-causeway-copy-agent"], "spec", "template", "spec"); at[string](pod, "priorityClassName") != "1" || at[string](pod, "imagePullSecrets", 0, "name") != "1" {
		t.Errorf("%v", pod)
	}
}

// TestRejectedValues: wrong values are rejected before any object is made.
func TestRejectedValues(t *testing.T) {
	bin := programs(t)
	for name, tc := range map[string]struct{ set, want string }{
		"a typing error":                      {"agent.maxCopy=1", "additional properties 'maxCopy' not allowed"},
		"the directory /run":                  {"agent.criSocket=/run/cri.sock", "/agent/criSocket"},
		"no runtimes":                         {"agent.nativeRuntimes=null", "missing property"},
		"a size without a number":             {"agent.containerCopySizeLimit=x", "/agent/containerCopySizeLimit"},
		"a flag without dashes":               {"apiserver.extraArgs={v=2}", "/apiserver/extraArgs"},
		"an unknown field of SELinux":         {"agent.seLinuxOptions.kind=x", "additional properties 'kind' not allowed"},
		"an update of no node":                {"agent.maxUnavailable=0", "/agent/maxUnavailable"},
		"an issuer for another source":        {"certificates.issuerRef.name=x", "certificates.issuerRef requires source: cert-manager"},
		"a bundle for another source":         {"certificates.caBundle=x", "certificates.caBundle requires source: secrets"},
		"secrets without the bundle":          {"certificates.source=secrets", "certificates.caBundle is required"},
		"a name that no Service can have":     {"fullnameOverride=7", "/fullnameOverride"},
		"a secret for the registry as object": {"images.pullSecrets[0].name=x", "/images/pullSecrets/0"},
	} {
		_, err := chart.Helm(t.Context(), bin, "template", "copy", filepath.Join(folder(), "chart"), "--set="+tc.set)
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), ".", "/"), strings.ReplaceAll(tc.want, ".", "/")) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	if _, err := chart.Helm(t.Context(), bin, "template", "7", filepath.Join(folder(), "chart")); err == nil || !strings.Contains(err.Error(), "a Service cannot be called 7-causeway-copy") {
		t.Errorf("a release 7: %v", err)
	}
}

// others are other values for values that have no obvious one.
var others = map[string]string{
	"fullnameOverride": `"other"`, "images.pullPolicy": `"Never"`, "certificates.source": `"cert-manager"`,
	"agent.criSocket": `"/run/crio/crio.sock"`, "agent.maxUnavailable": `3`, "agent.seLinuxOptions": `{"type": "spc_t"}`, "agent.resources.requests.cpu": `"1"`,
	"monitoring.kind": `"PodMonitor"`, "monitoring.interval": `"7s"`, "monitoring.labels": `{"a": "b"}`, "monitoring.rules.create": `true`,
}

// TestEveryValue changes each value in turn, and expects other objects.
func TestEveryValue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(folder(), "chart", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for path, value := range leaves("", values) {
		if path == "certificates.days" { // TestDays
			continue
		}
		base := map[string]string{"monitoring.labels": `--set-json=monitoring.kind="PodMonitor"`,
			"monitoring.interval":    `--set-json=monitoring.kind="PodMonitor"`,
			"certificates.issuerRef": `--set-json=certificates.source="cert-manager"`,
			"certificates.caBundle":  `--set-json=certificates={"source": "secrets", "caBundle": "x"}`}[path]
		other := others[path]
		if other == "" {
			switch v := value.(type) {
			case bool:
				other = fmt.Sprint(!v)
			case string:
				other = `"7"`
			case float64:
				other = fmt.Sprint(v + 7)
			case map[string]any:
				other = `{"name": "x"}`
			case []any:
				other = map[string]string{"pullSecrets": `["x"]`, "extraArgs": `["--x"]`, "nativeRuntimes": `["x"]`}[path[strings.LastIndexByte(path, '.')+1:]]
				if other == "" {
					other = `[{"key": "x"}]`
				}
			}
		}
		args := append(slices.DeleteFunc([]string{base}, func(s string) bool { return s == "" }), "--set-json="+path+"="+other)
		if before, after := plain(t, args[:len(args)-1]...), plain(t, args...); before == after {
			t.Errorf("%s=%s changes nothing", path, other)
		}
	}
}

// TestDays: generated certificates end after the days of the values.
func TestDays(t *testing.T) {
	all := render(t, "--set=certificates.days=100")
	for _, part := range []string{"serving", "client", "agents"} {
		for _, name := range []string{"ca.crt", "tls.crt"} {
			block, _ := pem.Decode(decode(t, at[string](all["Secret/copy-causeway-copy-"+part+"-generated"], "data", name)))
			if block == nil {
				t.Fatalf("%s: %s is not PEM", part, name)
			}
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if days := time.Until(c.NotAfter).Hours() / 24; days < 99 || days > 101 {
				t.Errorf("%s: %s ends in %.0f days", part, name, days)
			}
		}
	}
}

// leaves returns the values below a value, by their paths.
func leaves(path string, value any) map[string]any {
	m, ok := value.(map[string]any)
	if !ok || len(m) == 0 || m["apiVersion"] != nil { // an object of the API is a value
		return map[string]any{path: value}
	}
	all := map[string]any{}
	for key, v := range m {
		for p, leaf := range leaves(strings.TrimPrefix(path+"."+key, "."), v) {
			all[p] = leaf
		}
	}
	return all
}

// plain returns the objects as text, without the random parts of the certificates.
func plain(t *testing.T, args ...string) string {
	t.Helper()
	all := render(t, args...)
	for _, o := range all {
		if data := at[map[string]any](o, "data"); at[string](o, "kind") == "Secret" {
			for key := range data {
				data[key] = "…"
			}
		}
		if spec := at[map[string]any](o, "spec"); at[string](o, "kind") == "APIService" && len(at[string](spec, "caBundle")) > 100 {
			spec["caBundle"] = "…"
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRights: the API server has exactly the rights that it needs, and each role for users one of
// the two resources.
func TestRights(t *testing.T) {
	all := render(t)
	for name, want := range map[string]string{
		"ClusterRole/copy-causeway-copy-apiserver": `[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]},` +
			`{"apiGroups":[""],"resources":["namespaces"],"verbs":["get","list","watch"]},` +
			`{"apiGroups":["admissionregistration.k8s.io"],"resources":["mutatingwebhookconfigurations","validatingwebhookconfigurations",` +
			`"validatingadmissionpolicies","validatingadmissionpolicybindings","mutatingadmissionpolicies","mutatingadmissionpolicybindings"],` +
			`"verbs":["get","list","watch"]}]`,
		"Role/copy-causeway-copy-apiserver":   `[{"apiGroups":[""],"resources":["pods"],"verbs":["list"]}]`,
		"ClusterRole/copy-causeway-copy-from": `[{"apiGroups":["copy.causeway.dev"],"resources":["podcopiesfrom/proxy"],"verbs":["get"]}]`,
		"ClusterRole/copy-causeway-copy-to":   `[{"apiGroups":["copy.causeway.dev"],"resources":["podcopiesto/proxy"],"verbs":["get"]}]`,
	} {
		if got, _ := json.Marshal(at[any](all[name], "rules")); string(got) != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for name := range all {
		if strings.HasSuffix(strings.SplitN(name, "/", 2)[0], "Role") && !strings.Contains(name, "apiserver") && !strings.HasSuffix(name, "-from") && !strings.HasSuffix(name, "-to") {
			t.Errorf("another role: %s", name)
		}
	}
}

// TestCertManager: no certificate is for servers and clients, and the APIService gets the CA of the
// serving certificate.
func TestCertManager(t *testing.T) {
	all := render(t, "--set=certificates.source=cert-manager")
	for part, want := range map[string]string{
		"serving": `["copy-causeway-copy-apiserver.ns.svc"] ["digital signature","server auth"]`,
		"client":  `["causeway-copy"] ["digital signature","client auth"]`,
		"agents":  `["copy-causeway-copy-agent"] ["digital signature","server auth"]`,
	} {
		c := all["Certificate/copy-causeway-copy-"+part]
		names, _ := json.Marshal(at[any](c, "spec", "dnsNames"))
		usages, _ := json.Marshal(at[any](c, "spec", "usages"))
		if got := string(names) + " " + string(usages); got != want {
			t.Errorf("%s: %s", part, got)
		}
	}
	service := all["APIService/v1alpha1.copy.causeway.dev"]
	if got := at[string](service, "metadata", "annotations", "cert-manager.io/inject-ca-from"); got != "ns/copy-causeway-copy-serving" {
		t.Errorf("the CA is injected from %q", got)
	}
	if bundle := at[any](service, "spec", "caBundle"); bundle != nil {
		t.Errorf("the chart sets the bundle %v", bundle)
	}
}

// TestFlags: the programs have the flags that the chart passes.
func TestFlags(t *testing.T) {
	all := render(t)
	for name, of := range map[string]struct{ file, prefix string }{
		"DaemonSet/copy-causeway-copy-agent":      {"cmd/agent/flags_linux.go", "--"},
		"Deployment/copy-causeway-copy-apiserver": {"cmd/apiserver/run.go", "--agent"}, // the others are of k8s.io/apiserver
	} {
		source, err := os.ReadFile(filepath.Join(folder(), of.file))
		if err != nil {
			t.Fatal(err)
		}
		args := at[[]any](all[name], "spec", "template", "spec", "containers", 0, "args")
		if len(args) == 0 {
			t.Errorf("%s has no arguments", name)
		}
		for _, arg := range args {
			text, _ := arg.(string)
			flag, _, _ := strings.Cut(text, "=")
			if strings.HasPrefix(flag, of.prefix) && !strings.Contains(string(source), `"`+strings.TrimPrefix(flag, "--")+`"`) {
				t.Errorf("%s: %s has no flag %s", name, of.file, flag)
			}
		}
	}
}

// TestNetworkPolicy: only API servers reach the calls and the streams; metrics are for the sources
// of the values.
func TestNetworkPolicy(t *testing.T) {
	for args, want := range map[string]string{
		"--set=networkPolicy.enabled=true": `[{"from":[{"podSelector":{"matchLabels":{"app.kubernetes.io/name":"copy-causeway-copy-apiserver"}}}],` +
			`"ports":[{"port":"calls"},{"port":"streams"}]},{"ports":[{"port":"metrics"}]}]`,
		`--set-json=networkPolicy.metricsFrom=[{"podSelector":{}}]`: `[{"from":[{"podSelector":{"matchLabels":{"app.kubernetes.io/name":"copy-causeway-copy-apiserver"}}}],` +
			`"ports":[{"port":"calls"},{"port":"streams"}]},{"from":[{"podSelector":{}}],"ports":[{"port":"metrics"}]}]`,
	} {
		if got, _ := json.Marshal(at[any](render(t, args)["NetworkPolicy/copy-causeway-copy-agent"], "spec", "ingress")); string(got) != want {
			t.Errorf("%s: %s", args, got)
		}
	}
}
