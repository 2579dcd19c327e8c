package peertls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// maxNames and maxName bound the names in an error: the certificate may be that of an unknown
// client.
const maxNames, maxName = 3, 100

// explain adds the cause, for an operator, to an error of Verify at the time t. explain returns nil
// for nil.
func (p *pair) explain(leaf *x509.Certificate, err error, usage x509.ExtKeyUsage, t time.Time) error {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("wrong CA: the certificate of %s was issued by %s, and %s: %w", describe(leaf),
			word(leaf.Issuer.String()), p.ourCAs(leaf), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return expired(invalid.Cert, t)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("the certificate of %s is not for %s: its extended key usage is %s", describe(leaf),
			usageWord(usage), usageWords(leaf))
	}
	return fmt.Errorf("the certificate of %s cannot be verified: %w", describe(leaf), err)
}

// expired returns the error of a certificate that is not valid at t.
func expired(c *x509.Certificate, t time.Time) error {
	if t.Before(c.NotBefore) {
		return fmt.Errorf("the certificate of %s is not valid before %s, here it is %s", describe(c),
			moment(c.NotBefore), moment(t))
	}
	return fmt.Errorf("the certificate of %s has expired: it was valid until %s, here it is %s", describe(c),
		moment(c.NotAfter), moment(t))
}

// ourCAs names the CAs that are accepted, and the issuer of leaf, which is not.
func (p *pair) ourCAs(leaf *x509.Certificate) string {
	var subjects []string
	for _, ca := range p.cas {
		if ca.Subject.String() == leaf.Issuer.String() {
			return caFile + " has a CA of that name with another key"
		}
		subjects = append(subjects, word(ca.Subject.String()))
	}
	return caFile + " has " + listed(subjects)
}

// describe names the owner of a certificate: by its DNS names, else by its subject.
func describe(c *x509.Certificate) string {
	switch {
	case c.IsCA:
		return "the CA " + word(c.Subject.String())
	case len(c.DNSNames) == 0:
		return word(c.Subject.String()) + " (it has no DNS name)"
	}
	var names []string
	for _, n := range c.DNSNames {
		names = append(names, word(n))
	}
	return listed(names)
}

// describeOurs describes the certificate of this process, which a peer rejects.
func (p *pair) describeOurs() string {
	c := p.certificate.Leaf
	return fmt.Sprintf("ours is that of %s, issued by %s, valid from %s until %s", describe(c), word(c.Issuer.String()),
		moment(c.NotBefore), moment(c.NotAfter))
}

func listed(items []string) string {
	if more := len(items) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:maxNames], ", "), more)
	}
	return strings.Join(items, ", ")
}

// word returns a harmless name unchanged, and other names in single quotes: gRPC puts errors into
// double quotes, and text that is escaped twice is unreadable.
func word(s string) string {
	if legalName.MatchString(s) && len(s) <= maxName {
		return s
	}
	cut := ""
	if len(s) > maxName {
		s, cut = s[:maxName], "…"
	}
	q := strconv.QuoteToASCII(s)
	return "'" + q[1:len(q)-1] + cut + "'"
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// usageWord returns the name of a usage.
func usageWord(u x509.ExtKeyUsage) string {
	switch u {
	case x509.ExtKeyUsageServerAuth:
		return "servers (serverAuth)"
	case x509.ExtKeyUsageClientAuth:
		return "clients (clientAuth)"
	case x509.ExtKeyUsageAny:
		return "anything"
	}
	return fmt.Sprintf("another use (%d)", u)
}

// usageWords names the usages of c.
func usageWords(c *x509.Certificate) string {
	var words []string
	for _, u := range c.ExtKeyUsage {
		words = append(words, usageWord(u))
	}
	if len(words) == 0 {
		return "not set"
	}
	return listed(words)
}

// why returns the cause of a failed handshake, for an operator, beside errors of certificates.
func why(err error) error {
	var record tls.RecordHeaderError
	var timeout net.Error
	switch {
	case errors.As(err, &record) && record.Conn != nil: // set if the first bytes were not TLS
		return fmt.Errorf("it speaks plain text, no TLS: its first bytes are %s", word(string(record.RecordHeader[:])))
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("it did not complete the handshake in time: %w", err)
	}
	return err
}

// isAlert reports whether err is a TLS alert of the peer.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" // the operation of an alert in crypto/tls
}
