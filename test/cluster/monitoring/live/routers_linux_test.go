package live

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/install"
)

// certificate describes the certificates of router and nodes.
type certificate struct {
	name     string // of the nodes
	from, to time.Duration
	otherCA  bool   // of the router
	of       string // whose certificate has the times: nodes, router or both; the others are valid
}

// certificateStep returns a step with one fault of certificates.
func certificateStep(name string, rows, alerts []string, c certificate, cause, remedy, page string, also ...want) step {
	return step{name: name, faults: []fault{{name: "certificate", rows: rows, alerts: alerts,
		named: []want{{"router", "Pod/causeway-controller-", cause, remedy, page}}, also: append(also, restarting),
		cause: func(s *scene) { s.certificates(c) }}}}
}

// restarting is a finding while pods of nodes are replaced.
var restarting = want{check: "router", cause: "does not reach a node"}

// routerSteps are faults of the router, its certificates, and of the election of a leader.
func routerSteps() []step {
	const pageLeaders, year = "docs/explanation/csi-sidecars.md", 365 * 24 * time.Hour
	return []step{
		certificateStep("an expired certificate", []string{"Errors of the router: `refused our certificate`, `wrong CA`, `has expired`, …"},
			[]string{"CausewayCertificateExpired", "CausewayCertificateExpires"},
			certificate{"causeway-nodes", -2 * year, -time.Hour, false, "nodes"}, "a certificate has expired", "renew the certificates", pageCerts,
			want{check: "certificates", cause: "has expired"}),
		certificateStep("an expired certificate of the router", nil, []string{"CausewayCertificateExpired", "CausewayCertificateExpires"},
			certificate{"causeway-nodes", -2 * year, -time.Hour, false, "router"}, "a certificate has expired", "renew the certificates", pageCerts,
			want{check: "certificates", cause: "has expired"}),
		certificateStep("a certificate of the future", nil, nil, certificate{"causeway-nodes", time.Hour, year, false, "nodes"},
			"a certificate has expired, or a clock is wrong", "renew the certificates", pageCerts),
		certificateStep("two CAs", nil, nil, certificate{"causeway-nodes", -time.Hour, year, true, "nodes"},
			"do not belong together", "write the secrets of both sides again", pageCerts),
		certificateStep("the certificate of another node", []string{"Errors of the router: `node … has a certificate for …`, `the certificate is that of …, and not of …`"}, nil,
			certificate{"node-77", -time.Hour, year, false, "nodes"}, "has the certificate of another node", "give the node its own certificate", pageRouter),
		{name: "a certificate for a day", faults: []fault{{name: "certificate",
			alerts: []string{"CausewayCertificateExpires", "CausewayCertificateExpired"},
			named: []want{{"certificates", "Pod/causeway-node-", "expires in 0 days", "renew the certificate",
				"docs/how-to/certificates.md#rotation"},
				{"certificates", "Pod/causeway-controller-", "expires in 0 days", "renew the certificate",
					"docs/how-to/certificates.md#rotation"}},
			also: []want{restarting},
			cause: func(s *scene) {
				s.certificates(certificate{"causeway-nodes", -time.Hour, 24 * time.Hour, false, "both"})
			}}}},
		{name: "addresses", faults: []fault{
			{name: "two drivers with one node ID", alerts: []string{"CausewayNodesTwice"},
				rows: []string{"Errors of the router: `several addresses report the same node: …`, `several addresses report this node: …`"},
				named: []want{{"router", "Pod/causeway-controller-", "several addresses report the same node",
					"end the wrong driver", pageRouter}},
				also:  []want{restarting}, // a pod that has just ended
				cause: func(s *scene) { s.twin("twin", driverName, nodes[0].Name) }},
			{name: "an address of another driver", alerts: []string{"CausewayNodesSilent"},
				rows: []string{"Errors of the router: `it is the driver \"…\", and not …`"},
				named: []want{{"router", "Pod/causeway-controller-", "an address of the Service belongs to another driver",
					"selector of the Service", pageRouter}},
				cause: func(s *scene) { s.twin("stranger", "other.csi.example.com", "node-9") }},
			{name: "a claim for a node that is there twice",
				rows: []string{"A claim stays Pending: UNAVAILABLE, `not all nodes answer`", "Errors of the router: `not all nodes answer: …`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/all-nodes", "several addresses report the same node",
					"end the wrong driver", pageRouter}},
				cause: func(s *scene) {
					s.finds(want{check: "router", cause: "several addresses report the same node"})
					s.claimOf(class("all-nodes", driverName, "Immediate", "kind: directory"), "all-nodes", "1Mi")
				}},
		}},
		{name: "DNS", faults: []fault{{name: "no DNS", alerts: []string{"CausewayDiscoveryFails"},
			rows:  []string{"Errors of the router: `the lookup of the nodes' addresses failed; the known addresses stay in use`, `causeway_router_discovery_up 0`"},
			named: []want{{"router", "Pod/causeway-controller-", "cannot look up the addresses", "check DNS", pageRouter}},
			cause: func(s *scene) {
				s.later(func() { s.kubectl("-n", "kube-system", "scale", "deployment/coredns", "--replicas=2") })
				s.kubectl("-n", "kube-system", "scale", "deployment/coredns", "--replicas=0")
			}}}},
		{name: "Service and election", faults: []fault{
			{name: "no Service",
				named: []want{{"router", "Pod/causeway-controller-", "cannot look up the addresses", "the Service", pageRouter}},
				also:  []want{restarting},
				cause: func(s *scene) { s.without("service", "causeway-nodes") }},
			{name: "replicas without an election", alerts: []string{"CausewayTwoLeaders"},
				named: []want{{"leaders", "Lease/csi-sidecars-", "several pods lead at the same time", "--leader-election",
					pageLeaders + "#health-metrics-log"}},
				cause: func(s *scene) {
					s.edit("deployment", "causeway-controller", `"--leader-election"`, `"--leader-election=false"`)
				}},
		}},
		{name: "rights", faults: []fault{{name: "no right to leases",
			alerts: []string{"CausewayNoLeader", "CausewaySidecarsNotReady"},
			named: []want{{"rights", "ServiceAccount/causeway/causeway-controller", "lacks rights", "apply the roles", pageLeaders + "#rights"},
				{"leaders", "Lease/csi-sidecars-", "no leader", "log of csi-sidecars", pagePending},
				{"sidecars-ready", "Pod/causeway-controller-", "lacks a right", "apply the roles", "docs/how-to/install.md#objects"}},
			cause: func(s *scene) {
				s.edit("role", "causeway", `"leases"`, `"no-leases"`)
				s.kubectl("-n", install.Namespace, "delete", "pod", "-l", controllerPod)
			}}}},
	}
}

// certificates replaces the certificates of router and nodes until the repair.
func (s *scene) certificates(c certificate) {
	s.Helper()
	replace := func() { // so that nothing waits for the kubelet's next look at the secrets
		s.kubectl("-n", install.Namespace, "delete", "pod", "-l", "app.kubernetes.io/name in (causeway-node,causeway-controller)")
	}
	s.later(replace)
	ca, other := s.authority("one"), s.authority("other")
	router := ca
	if c.otherCA {
		router = other
	}
	const year = 365 * 24 * time.Hour
	sign := func(by authority, name, side string) [2][]byte {
		if c.of == side || c.of == "both" {
			return by.sign(s, name, c.from, c.to)
		}
		return by.sign(s, name, -time.Hour, year)
	}
	for name, pair := range map[string][2][]byte{
		"causeway-nodes-generated":  sign(ca, c.name, "nodes"),
		"causeway-router-generated": sign(router, "causeway-router", "router")} {
		var secret map[string]any
		saved := s.saved("secret", name)
		s.must(json.Unmarshal([]byte(saved), &secret))
		authority := ca
		if name == "causeway-router-generated" {
			authority = router
		}
		secret["data"] = map[string]string{"tls.crt": base64.StdEncoding.EncodeToString(pair[0]),
			"tls.key": base64.StdEncoding.EncodeToString(pair[1]), "ca.crt": base64.StdEncoding.EncodeToString(authority.pem)}
		edited, err := json.Marshal(secret)
		s.must(err)
		s.later(func() { s.restore(saved) })
		s.must(s.replace(string(edited)))
	}
	replace()
}

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func (s *scene) authority(name string) authority {
	s.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-10 * 365 * 24 * time.Hour),
		NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	s.must(err)
	cert, err := x509.ParseCertificate(der)
	s.must(err)
	return authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// sign returns a certificate and its key.
func (a authority) sign(s *scene, name string, from, to time.Duration) [2][]byte {
	s.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name},
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth}}, a.cert, key.Public(), a.key)
	s.must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	s.must(err)
	return [2][]byte{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// twin starts a driver on the second node that the Service of the nodes selects.
func (s *scene) twin(name, driver, node string) {
	s.Helper()
	s.later(func() { s.kubectl("-n", install.Namespace, "delete", "pod", name, "--now") })
	s.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: causeway, labels: {app.kubernetes.io/name: causeway-node}}
spec:
  nodeName: %[4]s
  automountServiceAccountToken: false
  containers:
  - name: driver
    image: ghcr.io/causeway-csi/driver:dev
    args: [--mode=node, --driver-name=%[2]s, --node-id=%[3]s, "--endpoint=unix:///var/lib/kubelet/csi.sock",
      --kubelet-dir=/var/lib/kubelet, --root=/var/lib/causeway, --init-root, "--peer-listen=:9810", --peer-certs=/certs]
    securityContext: {privileged: true, runAsUser: 0}
    ports: [{name: peer, containerPort: 9810}]
    volumeMounts:
    - {name: kubelet, mountPath: /var/lib/kubelet}
    - {name: root, mountPath: /var/lib/causeway}
    - {name: dev, mountPath: /dev}
    - {name: certs, mountPath: /certs}
  volumes:
  - {name: kubelet, emptyDir: {}}
  - {name: root, emptyDir: {}}
  - {name: dev, hostPath: {path: /dev}}
  - {name: certs, secret: {secretName: causeway-nodes-generated}}
`, name, driver, node, nodes[1].Name))
}

// address returns the address of the driver's pod on a node.
func (s *scene) address(node string) string {
	s.Helper()
	return strings.TrimSpace(s.kubectl("-n", install.Namespace, "get", "pods", "-l", nodePod, "--field-selector=spec.nodeName="+node,
		"-o", "jsonpath={.items[0].status.podIP}"))
}
