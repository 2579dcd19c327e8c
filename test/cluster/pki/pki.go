// Package pki makes the certificates of a test cluster: an authority, and certificates for servers
// and clients.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// valid is how long a certificate is good for: a local cluster may be kept for weeks.
const valid = 365 * 24 * time.Hour

// Pair is a certificate and its key, or a key alone, in PEM.
type Pair struct {
	Cert, Key []byte
}

// Files is where a Pair was written to.
type Files struct {
	Cert, Key string
}

// Authority signs certificates.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that signs itself.
func NewAuthority(name string) (*Authority, error) {
	template := certificate(pkix.Name{CommonName: name})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	a := &Authority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %q: %w", name, err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.Pair, err = encode(der, a.key)
	return a, err
}

// Client signs a certificate that Kubernetes takes for a user who is in groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	template := certificate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// Server signs a certificate of a server at hosts, which are DNS names and IP addresses.
func (a *Authority) Server(name string, hosts ...string) (Pair, error) {
	template := certificate(pkix.Name{CommonName: name})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return a.sign(template)
}

func (a *Authority) sign(template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate of %q: %w", template.Subject.CommonName, err)
	}
	return encode(der, key)
}

// NewKey makes a key without a certificate, such as that for the tokens of service accounts.
func NewKey() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	return encode(nil, key)
}

// Write puts the pair into the files name.crt and name.key of dir. The key is for this user alone.
func (p Pair) Write(dir, name string) (Files, error) {
	f := Files{Key: filepath.Join(dir, name+".key")}
	if p.Cert != nil {
		f.Cert = filepath.Join(dir, name+".crt")
		if err := os.WriteFile(f.Cert, p.Cert, 0o644); err != nil {
			return Files{}, err
		}
	}
	return f, os.WriteFile(f.Key, p.Key, 0o600)
}

// certificate returns the common fields of all certificates. They begin an hour ago: a guest's
// clock may be behind.
func certificate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{ // x509 draws the serial number
		Subject:   subject,
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(valid),
		KeyUsage:  x509.KeyUsageDigitalSignature,
	}
}

func encode(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	k, err := x509.MarshalECPrivateKey(key) // the API server cannot read the public key of PKCS #8
	if err != nil {
		return Pair{}, err
	}
	p := Pair{Key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: k})}
	if der != nil {
		p.Cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return p, nil
}
