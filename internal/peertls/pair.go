package peertls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// pair is the certificate of this process and the accepted CAs.
type pair struct {
	certificate tls.Certificate // of this process, with its Leaf
	cas         []*x509.Certificate
	roots       *x509.CertPool // the CAs as a pool
}

// parse reads the content of the three files.
func parse(c content) (*pair, error) {
	cas, err := certificates(caFile, c[0])
	if err != nil {
		return nil, err
	}
	p := &pair{cas: cas, roots: x509.NewCertPool()}
	for _, ca := range cas {
		if !ca.IsCA {
			return nil, fmt.Errorf("%s: the certificate of %s is not that of a CA", caFile, describe(ca))
		}
		p.roots.AddCert(ca)
	}
	chain, err := certificates(certFile, c[1])
	if err != nil {
		return nil, err
	}
	if p.certificate, err = tls.X509KeyPair(c[1], c[2]); err != nil {
		return nil, fmt.Errorf("%s cannot be used with %s, the certificate of %s: %w", keyFile, certFile,
			describe(chain[0]), err)
	}
	p.certificate.Leaf = chain[0]
	return p, nil
}

// certificates parses PEM. A file without certificates, or with other data, is an error.
func certificates(name string, data []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	blocks := 0
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks++
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d in it cannot be read: %w", name, len(all)+1, err)
		}
		all = append(all, c)
	}
	if begun := bytes.Count(data, []byte("-----BEGIN ")); begun != blocks {
		return nil, fmt.Errorf("%s: %d of %d PEM blocks in it are cut off or damaged", name, begun-blocks, begun)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no certificate in PEM form is in it (%d bytes, %d PEM blocks of another kind)",
			name, len(data), blocks)
	}
	return all, nil
}

// checkOurs returns an error if every peer rejects the certificate of this process at t, whichever
// CAs it accepts.
func (p *pair) checkOurs(t time.Time) error {
	chain := []*x509.Certificate{p.certificate.Leaf}
	for _, der := range p.certificate.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		chain = append(chain, c)
	}
	err := p.checkChain(chain, x509.ExtKeyUsageAny, t)
	if unknown := (x509.UnknownAuthorityError{}); err == nil || errors.As(err, &unknown) {
		return nil
	}
	return fmt.Errorf("peers will refuse %s: %w", certFile, err)
}

// check returns an error unless the first certificate of chain, that of a peer, is for usage, valid
// at t and signed by an accepted CA.
func (p *pair) check(chain []*x509.Certificate, usage x509.ExtKeyUsage, t time.Time) error {
	if len(chain) == 0 {
		return errors.New("it showed no certificate")
	}
	if err := p.checkChain(chain, usage, t); err != nil {
		return err
	}
	return checkUsage(chain[0], usage)
}

func (p *pair) checkChain(chain []*x509.Certificate, usage x509.ExtKeyUsage, t time.Time) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: p.roots, Intermediates: between, CurrentTime: t, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	return p.explain(chain[0], err, usage, t)
}

// checkUsage returns an error unless c has usage. crypto/x509 accepts a certificate without usages
// for every usage, and cert-manager makes such certificates by default: that of a node could then
// serve as a client's.
func checkUsage(c *x509.Certificate, usage x509.ExtKeyUsage) error {
	if slices.Contains(c.ExtKeyUsage, usage) {
		return nil
	}
	return fmt.Errorf("the certificate of %s is not for %s: its extended key usage is %s", describe(c),
		usageWord(usage),
		usageWords(c))
}

// checkName returns an error unless name is among the DNS names of c, in any case of letters.
func checkName(c *x509.Certificate, name string) error {
	if name != "" && slices.ContainsFunc(c.DNSNames, func(n string) bool { return strings.EqualFold(n, name) }) {
		return nil
	}
	return fmt.Errorf("wrong name: the certificate is that of %s, and not of %s", describe(c), word(name))
}
