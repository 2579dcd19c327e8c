package peertls

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/internal/atomicfile"
	"github.com/causeway-csi/causeway/internal/beneath"
)

const (
	year     = 365 * 24 * time.Hour
	caValid  = 10 * year
	clockGap = 5 * time.Minute // a certificate is valid from so long ago: other clocks may be behind

	maxCommonName = 64 // RFC 5280, ub-common-name
)

// authority is a CA with its key.
type authority struct {
	bundle []byte // its caFile
	cert   *x509.Certificate
	key    crypto.Signer
}

// openCA reads the CA in dir. If dir has neither a certificate nor a key, openCA makes a CA and
// returns the files to write. openCA never replaces a key. A CA without its key is an error.
func openCA(dir string) (*authority, []file, error) {
	bundle, err := readFile(filepath.Join(dir, caFile))
	noCert := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noCert {
		return nil, nil, err
	}
	key, err := readFile(filepath.Join(dir, caKeyFile))
	noKey := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !noKey:
		return nil, nil, err
	case noCert && noKey:
		return newCA(dir)
	case noCert:
		return nil, nil, fmt.Errorf("%s has a %s without its %s: put that back, or remove the key if the CA was "+
			"never used", dir, caKeyFile, caFile)
	case noKey:
		return nil, nil, fmt.Errorf("%s has a %s without its %s, which has to sign: put that back, or use another "+
			"directory", dir, caFile, caKeyFile)
	}
	ca, err := readCA(bundle, key)
	if err != nil {
		return nil, nil, fmt.Errorf("the CA in %s: %w", dir, err)
	}
	return ca, nil, nil
}

func readCA(bundle, key []byte) (*authority, error) {
	certs, err := certificates(caFile, bundle)
	if err != nil {
		return nil, err
	}
	both, err := tls.X509KeyPair(bundle, key)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be used with %s: %w", caKeyFile, caFile, err)
	}
	signer, ok := both.PrivateKey.(crypto.Signer)
	if !ok || !certs[0].IsCA {
		return nil, fmt.Errorf("%s: the first certificate, of %s, is not that of a CA", caFile, describe(certs[0]))
	}
	if now := time.Now(); now.After(certs[0].NotAfter) {
		return nil, expired(certs[0], now)
	}
	return &authority{bundle: bundle, cert: certs[0], key: signer}, nil
}

// newCA makes a CA that may sign leaves and no other CA. Each CA has a unique name, so that errors
// can tell CAs apart.
func newCA(dir string) (*authority, []file, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: fmt.Sprintf("Causeway CA %08x", new(big.Int).Rsh(serial, 96))},
		NotBefore:             now.Add(-clockGap),
		NotAfter:              now.Add(caValid),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	cert, key, err := issue(template, nil)
	if err != nil {
		return nil, nil, err
	}
	ca, err := readCA(cert, key)
	// The certificate comes last: if present, the key exists.
	return ca, []file{{filepath.Join(dir, caKeyFile), key}, {filepath.Join(dir, caFile), cert}}, err
}

// sign makes a certificate with a new key. The certificate does not outlive the CA.
func (ca *authority) sign(l leaf, valid time.Duration) (cert, key []byte, until time.Time, err error) {
	if valid == 0 {
		valid = year
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, until, err
	}
	now := time.Now()
	until = now.Add(valid)
	if until.After(ca.cert.NotAfter) {
		until = ca.cert.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		DNSNames:     []string{l.name},
		NotBefore:    now.Add(-clockGap), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{l.usage},
		BasicConstraintsValid: true,
	}
	if len(l.name) <= maxCommonName {
		template.Subject.CommonName = l.name // for display: only the DNS names count
	}
	cert, key, err = issue(template, ca)
	return cert, key, until, err
}

// issue makes a key and its certificate, both as PEM. ca signs the certificate; if ca is nil, the
// key signs it.
func issue(template *x509.Certificate, ca *authority) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if ca == nil {
		ca = &authority{cert: template, key: private}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, private.Public(), ca.key)
	if err != nil {
		return nil, nil, err
	}
	plain, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: plain}), nil
}

// newSerial returns 128 random bits. RFC 5280, 4.1.2.2 permits 159.
func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
}

// file is a file to write.
type file struct {
	path string
	data []byte
}

// write writes the file durably and replaces an old file atomically: at every moment the old or the
// new file is complete.
func (f file) write() error {
	path := filepath.Dir(f.path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	dir, err := beneath.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	w := atomicfile.Writer{Dir: dir, Temp: ".new-" + atomicfile.Random()}
	if err := w.Write(filepath.Base(f.path), f.data); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	parent, err := beneath.Open(filepath.Dir(path)) // MkdirAll may have made the directory
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync("."), parent.Close())
}
