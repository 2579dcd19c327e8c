package peertls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// tree returns the files below dir with their content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func mustMake(t *testing.T, dir string, o MakeOptions) []Made {
	t.Helper()
	made, err := Make(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func certIn(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := certificates(path, data)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func TestNewCertificatesWork(t *testing.T) {
	dir := t.TempDir()
	made := mustMake(t, dir, MakeOptions{Client: router, Nodes: []string{node, "node-b"}, Shared: "nodes.example"})
	wanted := []string{"ca.crt", "ca.key"}
	for _, sub := range []string{"nodes-shared", "nodes/node-a", "nodes/node-b", "router"} {
		wanted = append(wanted, sub+"/ca.crt", sub+"/tls.crt", sub+"/tls.key")
	}
	got := tree(t, dir)
	for _, name := range wanted {
		if got[name] == "" {
			t.Errorf("%s is not there", name)
		}
	}
	if len(got) != len(wanted) || len(made) != 5 {
		t.Errorf("made %v, %+v", got, made)
	}
	idOf := func(sub string) *Identity {
		id, err := Open(filepath.Join(dir, sub), func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for _, m := range made[1:] {
		if !m.New || m.Kind == KindRouter {
			continue
		}
		sub, _ := filepath.Rel(dir, m.Dir)
		s := serve(t, grpc.Creds(idOf(sub).Server(router)))
		if names, err := s.call(idOf("router").Client(m.Name)); err != nil || !slices.Equal(names, []string{m.Name}) {
			t.Errorf("%s: %q answered, %v", sub, names, err)
		}
	}
}

// TestANodesLeafIsNoRouters is rule 25 with the files of driver certs.
func TestANodesLeafIsNoRouters(t *testing.T) {
	dir := t.TempDir()
	mustMake(t, dir, MakeOptions{Client: router, Nodes: []string{node, "node-b"}, Shared: "nodes.example"})
	victim, log := open(t, filepath.Join(dir, "nodes", node))
	s := serve(t, grpc.Creds(victim.Server(router)))
	for _, sub := range []string{"nodes/node-b", "nodes-shared"} {
		thief, _ := open(t, filepath.Join(dir, sub))
		_, err := s.call(thief.Client(node))
		errorSays(t, sub, err, "refused our certificate")
	}
	s.stop()
	for _, line := range log.takeLines() {
		says(t, "the victim", line, "is not for clients (clientAuth)")
	}
	if len(s.peers) != 0 {
		t.Errorf("%q called", s.peers)
	}
	thief, _ := open(t, filepath.Join(dir, "router"))
	_, err := serve(t, grpc.Creds(thief.Server(router))).call(thief.Client(""))
	errorSays(t, "the router as a server", err, "is not for servers (serverAuth)")
}

func TestTheContentOfTheCertificates(t *testing.T) {
	dir, start := t.TempDir(), time.Now()
	made := mustMake(t, dir, MakeOptions{Client: router, Nodes: []string{node}})
	ca := certIn(t, filepath.Join(dir, caFile))
	if !ca.IsCA || !ca.MaxPathLenZero || ca.MaxPathLen != 0 || ca.KeyUsage&x509.KeyUsageCertSign == 0 ||
		ca.NotAfter.Before(start.Add(caValid-time.Minute)) || ca.Subject.CommonName != made[0].Name {
		t.Errorf("the CA: %+v", ca)
	}
	for sub, want := range map[string]struct {
		name  string
		usage x509.ExtKeyUsage
	}{"router": {router, forClients}, "nodes/" + node: {node, forServers}} {
		c := certIn(t, filepath.Join(dir, sub, certFile))
		if !slices.Equal(c.DNSNames, []string{want.name}) || !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{want.usage}) || c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("%s: %+v", sub, c)
		}
		if c.NotBefore.After(start.Add(-time.Minute)) || c.NotAfter.Before(start.Add(year-time.Minute)) ||
			c.NotAfter.After(start.Add(year+time.Hour)) {
			t.Errorf("%s: valid from %s to %s", sub, c.NotBefore, c.NotAfter)
		}
		if bits := c.SerialNumber.BitLen(); bits > 128 || bits < 64 || c.SerialNumber.Cmp(ca.SerialNumber) == 0 {
			t.Errorf("%s: serial %x", sub, c.SerialNumber)
		}
		key, err := os.ReadFile(filepath.Join(dir, sub, keyFile))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(key)
		private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if k, ok := private.(*ecdsa.PrivateKey); err != nil || !ok || k.Curve != elliptic.P256() {
			t.Errorf("%s: %T, %v", sub, private, err)
		}
	}
}

func TestMakeTwiceKeepsAndRenewRenews(t *testing.T) {
	dir := t.TempDir()
	o := MakeOptions{Client: router, Nodes: []string{node}, Shared: "all"}
	mustMake(t, dir, o)
	before := tree(t, dir)
	o.Nodes = append(o.Nodes, "node-b")
	for _, m := range mustMake(t, dir, o) {
		if m.New != (m.Name == "node-b") || m.Until.IsZero() {
			t.Errorf("%+v", m)
		}
	}
	after := tree(t, dir)
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s was changed", name)
		}
	}
	if len(after) != len(before)+3 {
		t.Errorf("there is %v", after)
	}
	o.Renew, o.Valid = true, 48*time.Hour
	for _, m := range mustMake(t, dir, o)[1:] {
		if !m.New || m.Until.After(time.Now().Add(o.Valid)) {
			t.Errorf("%+v", m)
		}
	}
	renewed := tree(t, dir)
	for name, was := range after {
		if changed := renewed[name] != was; changed != strings.Contains(name, "tls.") {
			t.Errorf("%s: changed is %v", name, changed)
		}
	}
	if len(renewed) != len(after) {
		t.Errorf("left: %v", renewed)
	}
}

// TestTheBundleIsCopied: who puts a second CA into ca.crt has it in every directory, which is how a
// CA is replaced.
func TestTheBundleIsCopied(t *testing.T) {
	dir := t.TempDir()
	o := MakeOptions{Client: router, Nodes: []string{node}}
	mustMake(t, dir, o)
	before := tree(t, dir)
	bundle := before["ca.crt"] + string(newTestCA(t, "the next CA").bundle)
	if err := os.WriteFile(filepath.Join(dir, caFile), []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, m := range mustMake(t, dir, o) {
		if m.New {
			t.Errorf("%+v", m)
		}
	}
	for name, now := range tree(t, dir) {
		switch {
		case strings.HasSuffix(name, caFile) && now != bundle, !strings.HasSuffix(name, caFile) && now != before[name]:
			t.Errorf("%s has %d bytes", name, len(now))
		}
	}
	open(t, filepath.Join(dir, "router"))
}

func TestLeavesEndWithTheirCA(t *testing.T) {
	dir := t.TempDir()
	made := mustMake(t, dir, MakeOptions{Client: router, Valid: 20 * year})
	if ca := certIn(t, filepath.Join(dir, caFile)); !made[1].Until.Equal(ca.NotAfter) {
		t.Errorf("valid until %s, the CA until %s", made[1].Until, ca.NotAfter)
	}
}

// TestIllegalNamesWriteNothing also has the legal names that look odd.
func TestIllegalNamesWriteNothing(t *testing.T) {
	for what, o := range map[string]MakeOptions{
		"a way up":            {Client: router, Nodes: []string{node, ".."}},
		"a way further up":    {Client: router, Nodes: []string{"../../etc"}},
		"a path":              {Client: router, Nodes: []string{"a/b"}},
		"a Windows path":      {Client: router, Nodes: []string{`a\b`}},
		"a drive":             {Client: router, Nodes: []string{"c:"}},
		"no name":             {Client: router, Nodes: []string{""}},
		"a wildcard":          {Client: router, Nodes: []string{"*.example"}},
		"a space":             {Client: router, Nodes: []string{"a b"}},
		"two dots":            {Client: router, Nodes: []string{"a..b"}},
		"a dot at the end":    {Client: router, Nodes: []string{"a."}},
		"a hidden file":       {Client: router, Nodes: []string{".a"}},
		"a flag":              {Client: router, Nodes: []string{"-a"}},
		"a line":              {Client: router, Nodes: []string{"a\nb"}},
		"a letter":            {Client: router, Nodes: []string{"ä"}},
		"a long name":         {Client: router, Nodes: []string{strings.Repeat("a", 254)}},
		"one node twice":      {Client: router, Nodes: []string{node, node}},
		"one in two cases":    {Client: router, Nodes: []string{node, "NODE-A"}},
		"a node as router":    {Client: router, Nodes: []string{router}},
		"an illegal router":   {Client: "*"},
		"illegal as shared":   {Client: router, Shared: "a/b"},
		"a time that is past": {Client: router, Valid: -time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := Make(dir, o); err == nil {
				t.Error("no error")
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "N.Example-1", "under_score", "10.0.0.1", strings.Repeat("a", 253)} {
		mustMake(t, dir, MakeOptions{Nodes: []string{name}})
		if id, _ := open(t, filepath.Join(dir, "nodes", name)); id.ours.certificate.Leaf.DNSNames[0] != name {
			t.Errorf("%s: %q", name, id.ours.certificate.Leaf.DNSNames)
		}
	}
}

// TestMakeGuessesNothing: files that differ from the request are not changed.
func TestMakeGuessesNothing(t *testing.T) {
	remove := func(names ...string) func(string) error {
		return func(dir string) (err error) {
			for _, name := range names {
				err = errors.Join(err, os.Remove(filepath.Join(dir, filepath.FromSlash(name))))
			}
			return err
		}
	}
	write := func(name string, data []byte) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), data, 0o600) }
	}
	other := newTestCA(t, "another CA")
	stranger := other.leaf(t, router, forClients)
	late := newTestCA(t, "late CA", hasExpired)
	for what, tc := range map[string]struct {
		spoil func(dir string) error
		asked MakeOptions
		words []string
	}{
		"a CA without key": {remove("ca.key"), MakeOptions{Client: router}, []string{"ca.crt without its ca.key"}},
		"a key without CA": {remove("ca.crt"), MakeOptions{Client: router}, []string{"ca.key without its ca.crt"}},
		"another CA's key": {write("ca.key", keyOf(t, other)), MakeOptions{Client: router},
			[]string{"ca.key cannot be used with ca.crt"}},
		"a CA of garbage": {write("ca.crt", []byte("x")), MakeOptions{Client: router},
			[]string{"ca.crt: no certificate"}},
		"no CA any more": {remove("ca.crt", "ca.key"), MakeOptions{Client: router},
			[]string{"issued by", "Causeway CA", "is only replaced with --renew"}},
		"another name": {nil, MakeOptions{Client: "other-router"},
			[]string{"wrong name", "causeway-router", "other-router", "is only replaced with --renew"}},
		"a key that is lost": {remove("router/tls.key"), MakeOptions{Client: router},
			[]string{"tls.key", "is only replaced with --renew"}},
		"a key that is wrong": {write("router/tls.key", stranger[2]), MakeOptions{Client: router},
			[]string{"does not match", "only replaced"}},
		"a certificate's ruin": {write("router/tls.crt", []byte("x")), MakeOptions{Client: router},
			[]string{"no certificate in PEM form", "only replaced"}},
		"a leaf as CA": {func(dir string) error {
			return errors.Join(write("ca.crt", stranger[1])(dir), write("ca.key", stranger[2])(dir))
		}, MakeOptions{Client: router}, []string{"is not that of a CA"}},
		"a CA that is over": {func(dir string) error {
			return errors.Join(write("ca.crt", late.bundle)(dir), write("ca.key", keyOf(t, late))(dir))
		}, MakeOptions{Client: router, Renew: true}, []string{"late CA", "has expired"}},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			mustMake(t, dir, MakeOptions{Client: router})
			if tc.spoil != nil {
				if err := tc.spoil(dir); err != nil {
					t.Fatal(err)
				}
			}
			before := tree(t, dir)
			tc.asked.Nodes = []string{"node-b"}
			_, err := Make(dir, tc.asked)
			errorSays(t, "Make", err, tc.words...)
			after := tree(t, dir)
			for name, was := range before {
				if !bytes.Equal([]byte(was), []byte(after[name])) {
					t.Errorf("%s was changed", name)
				}
			}
			if len(after) != len(before) {
				t.Errorf("there is %v", after)
			}
		})
	}
}

// TestAnInterruptedMakeIsDoneAgain: the certificate is written last, so a key without a certificate
// is ignored.
func TestAnInterruptedMakeIsDoneAgain(t *testing.T) {
	dir := t.TempDir()
	o := MakeOptions{Client: router}
	mustMake(t, dir, o)
	if err := os.Remove(filepath.Join(dir, "router", certFile)); err != nil {
		t.Fatal(err)
	}
	if made := mustMake(t, dir, o); !made[1].New {
		t.Errorf("%+v", made)
	}
	open(t, filepath.Join(dir, "router"))
}
