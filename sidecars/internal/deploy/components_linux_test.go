package deploy

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	network "k8s.io/api/networking/v1"
	storage "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"
)

// fenced are the blocks of YAML on a page.
var fenced = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// certificate has the fields of a Certificate of cert-manager on which the manifests depend.
type certificate struct {
	object `json:",inline"`
	Spec   struct {
		SecretName string
		DNSNames   []string
		Usages     []string
	}
}

// certificateObjects are the objects of cert-manager in a text, in order.
func certificateObjects(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for _, d := range documents(text) {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(d), &o); err != nil {
			t.Fatal(err)
		}
		if o["apiVersion"] == "cert-manager.io/v1" {
			all = append(all, o)
		}
	}
	return all
}

// TestCertificates: the pods mount the certificates that cert-manager makes, each valid for one
// side; and the page shows the same.
func TestCertificates(t *testing.T) {
	text := read(t, "deploy", "linux", "cert-manager", "certificates.yaml")
	m, err := parse(linuxFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range documents(text) {
		var c certificate
		if err := yaml.Unmarshal([]byte(d), &c); err != nil {
			t.Fatal(err)
		}
		got[c.Spec.SecretName] = fmt.Sprint(c.Spec.DNSNames, c.Spec.Usages, c.Metadata.Namespace)
	}
	for secret, want := range map[string]string{
		// the default of --peer-client
		"causeway-router-tls": fmt.Sprint([]string{"causeway-router"}, []string{"digital signature", "client auth"},
			namespace),
		"causeway-nodes-tls": fmt.Sprint([]string{m.router()["peer-server"]},
			[]string{"digital signature", "server auth"}, namespace),
	} {
		if got[secret] != want {
			t.Errorf("%s is %s, want %s", secret, got[secret], want)
		}
	}
	if given(container(m.node.Spec.Template.Spec, "driver"))["peer-client"] != "" {
		t.Error("the nodes expect another router than cert-manager's")
	}
	var shown []map[string]any
	for _, block := range fenced.FindAllStringSubmatch(read(t, "docs", "how-to", "certificates.md"), -1) {
		shown = append(shown, certificateObjects(t, block[1])...)
	}
	have := certificateObjects(t, text)
	for _, o := range have { // which the page leaves out
		delete(o["metadata"].(map[string]any), "labels")
	}
	byName := func(a, b map[string]any) int {
		return cmp.Compare(fmt.Sprint(a["kind"], a["metadata"]), fmt.Sprint(b["kind"], b["metadata"]))
	}
	slices.SortFunc(have, byName)
	slices.SortFunc(shown, byName)
	if len(have) != 5 || !reflect.DeepEqual(have, shown) {
		t.Errorf("the component has %v, and docs/how-to/certificates.md %v", have, shown)
	}
	if page := read(t, "docs", "how-to", "install.md"); !strings.Contains(page,
		"driver certs --dir=certs --shared="+m.router()["peer-server"]+"\n") {
		t.Error("docs/how-to/install.md makes certificates with another name than --peer-server's")
	}
}

// TestNetworkPolicies: the peers' port is the router's, and all other open ports are for metrics.
func TestNetworkPolicies(t *testing.T) {
	m, err := parse(linuxFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	scrapers := []network.NetworkPolicyPeer{}
	if err := yaml.Unmarshal([]byte(`[{namespaceSelector: {matchLabels: {causeway.dev/scrapes-metrics: "true"}}}]`),
		&scrapers); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, d := range documents(read(t, "deploy", "linux", "network-policy", "policies.yaml")) {
		var p network.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(d), &p); err != nil {
			t.Fatal(err)
		}
		seen++
		isNode := p.Name == "causeway-node"
		selector, template := m.controller.Spec.Selector, m.controller.Spec.Template
		if isNode {
			selector, template = m.node.Spec.Selector, m.node.Spec.Template
		}
		const name = "app.kubernetes.io/name"
		if of := p.Spec.PodSelector.MatchLabels; len(of) != 1 || of[name] != selector.MatchLabels[name] ||
			p.Namespace != namespace {
			t.Errorf("%s is for %v in %s", p.Name, p.Spec.PodSelector, p.Namespace)
		}
		if calls := !slices.Contains(p.Spec.PolicyTypes, network.PolicyTypeEgress) ||
			len(p.Spec.Egress) > 0; calls == isNode {
			t.Errorf("%s may call others: %t", p.Name, calls)
		}
		open := map[string][]network.NetworkPolicyPeer{}
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				open[port.Port.String()] = rule.From
			}
		}
		want := map[string][]network.NetworkPolicyPeer{}
		for _, c := range template.Spec.Containers {
			for _, port := range c.Ports {
				want[fmt.Sprint(port.ContainerPort)] = scrapers
				if port.Name == "peer" {
					want[fmt.Sprint(port.ContainerPort)] = []network.NetworkPolicyPeer{{PodSelector: m.controller.Spec.Selector}}
				}
			}
		}
		if !reflect.DeepEqual(open, want) {
			t.Errorf("%s opens %v, want %v", p.Name, open, want)
		}
	}
	if seen != 2 {
		t.Errorf("there are %d policies", seen)
	}
}

// TestParameters: the parameters of classes are in docs/reference/parameters.md.
func TestParameters(t *testing.T) {
	m, err := parse(linuxFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	var attributes storage.VolumeAttributesClass
	if err := yaml.UnmarshalStrict([]byte(read(t, "deploy", "linux", "attributes", "class.yaml")),
		&attributes); err != nil || attributes.DriverName != driverName {
		t.Errorf("%q, %v", attributes.DriverName, err)
	}
	said := []map[string]string{attributes.Parameters}
	for _, c := range m.classes {
		said = append(said, c.Parameters)
	}
	page := read(t, "docs", "reference", "parameters.md")
	for _, parameters := range said {
		if len(parameters) == 0 {
			t.Error("a class says nothing")
		}
		for name := range parameters {
			if !strings.Contains(page, "\n| `"+name+"` |") {
				t.Errorf("docs/reference/parameters.md does not know %s", name)
			}
		}
	}
}
