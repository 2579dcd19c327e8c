package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/pki"
)

// verify returns the certificate of a pair whose key fits it, if the authority signed it for that
// use.
func verify(t *testing.T, a *pki.Authority, p pki.Pair, o x509.VerifyOptions) (*x509.Certificate, error) {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	o.Roots = x509.NewCertPool()
	o.Roots.AppendCertsFromPEM(a.Cert)
	_, err = pair.Leaf.Verify(o)
	return pair.Leaf, err
}

func TestClient(t *testing.T) {
	a, other := authority(t), authority(t)
	p, err := a.Client("jane", "readers", "writers")
	if err != nil {
		t.Fatal(err)
	}
	client := x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	got, err := verify(t, a, p, client)
	if err != nil || got.Subject.CommonName != "jane" ||
		!slices.Equal(got.Subject.Organization, []string{"readers", "writers"}) {
		t.Errorf("got %v, %v, want jane, who reads and writes", got.Subject, err)
	}
	if _, err := verify(t, other, p, client); err == nil {
		t.Error("another authority's: no error")
	}
	if _, err := verify(t, a, p, x509.VerifyOptions{}); err == nil { // the zero value is a server
		t.Error("as a server: no error")
	}
}

func TestServer(t *testing.T) {
	a := authority(t)
	p, err := a.Server("apiserver", "localhost", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "example.com": false,
		"127.0.0.2": false} {
		if _, err := verify(t, a, p, x509.VerifyOptions{DNSName: host}); (err == nil) != want {
			t.Errorf("%s: got %v, want its own: %t", host, err, want)
		}
	}
}

func TestWrite(t *testing.T) {
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []pki.Pair{authority(t).Pair, key} {
		dir := t.TempDir()
		f, err := p.Write(dir, "name")
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(f.Key); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key: got %v, %v, want the mode 0600", info, err)
		}
		if (f.Cert != "") != (p.Cert != nil) || f.Cert != "" && f.Cert != filepath.Join(dir, "name.crt") {
			t.Errorf("certificate's file: got %q", f.Cert)
		}
	}
}

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	return a
}
