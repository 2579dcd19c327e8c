package peertls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// caKeyFile is beside the CA's caFile, where Make can use it.
const caKeyFile = "ca.key"

// What Made.Kind says.
const (
	KindCA     = "CA"
	KindRouter = "router"
	KindNode   = "node"
	KindShared = "nodes" // one certificate for all of them
)

// MakeOptions say what Make makes.
type MakeOptions struct {
	Client string        // the router's name; none is made if it is empty
	Nodes  []string      // the IDs of nodes, as NodeGetInfo has them: each gets a certificate of its own
	Shared string        // the name in one certificate for all nodes; none is made if it is empty
	Valid  time.Duration // how long certificates are valid, but for the CA's: 0 is a year
	Renew  bool          // replace the certificates that are there, but for the CA's
}

// Made is a certificate that is there when Make returns.
type Made struct {
	Kind  string
	Dir   string // where ca.crt and, but for the CA, tls.crt and tls.key are
	Name  string
	Until time.Time
	New   bool // made by this call
}

// Make makes certificates for clusters without cert-manager:
//
//	dir/ca.crt  dir/ca.key       the CA, unless they are there
//	dir/router/                  ca.crt, tls.crt and tls.key of the router: for clients only
//	dir/nodes/<ID>/              the same of a node: for servers only
//	dir/nodes-shared/            the same of all nodes
//
// Keys are ECDSA P-256 in PKCS#8, files have mode 0600 and directories that it makes 0700; Windows knows no such modes,
// and there dir should be the administrator's. What is there stays, so that nodes can be added and a Make that was
// interrupted be done again; certificates of before are replaced if that is asked for. Those of ca.crt may be several:
// the first signs, all are believed, and the copies are brought up to date. The CA comes first in what it returns.
// Nothing is written if a name isn't one that a certificate and a directory can have, or if something is there that
// isn't what is asked for.
func Make(dir string, o MakeOptions) ([]Made, error) {
	leaves, err := o.leaves(dir)
	if err != nil {
		return nil, err
	}
	ca, files, err := openCA(dir)
	if err != nil {
		return nil, err
	}
	made := []Made{{KindCA, dir, ca.cert.Subject.CommonName, ca.cert.NotAfter, len(files) > 0}}
	for _, l := range leaves {
		until, more, err := ca.provide(l, o)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
		made = append(made, Made{l.kind, l.dir, l.name, until, len(more) > 1})
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// leaf is a certificate that is wanted.
type leaf struct {
	kind, dir, name string
	usage           x509.ExtKeyUsage
}

// leaves returns what is wanted below dir, when all names have been found legal.
func (o MakeOptions) leaves(dir string) ([]leaf, error) {
	var all []leaf
	if o.Valid < 0 {
		return nil, fmt.Errorf("certificates can't be valid for %s", o.Valid)
	}
	if o.Client != "" {
		all = append(all, leaf{KindRouter, filepath.Join(dir, "router"), o.Client, x509.ExtKeyUsageClientAuth})
	}
	if o.Shared != "" {
		all = append(all, leaf{KindShared, filepath.Join(dir, "nodes-shared"), o.Shared, x509.ExtKeyUsageServerAuth})
	}
	for _, node := range o.Nodes {
		all = append(all, leaf{KindNode, filepath.Join(dir, "nodes", node), node, x509.ExtKeyUsageServerAuth})
	}
	seen := map[string]string{}
	for _, l := range all {
		if err := checkLegal(l.name); err != nil {
			return nil, err
		}
		if other, ok := seen[strings.ToLower(l.name)]; ok {
			return nil, fmt.Errorf("%q and %q are one name in certificates", other, l.name)
		}
		seen[strings.ToLower(l.name)] = l.name
	}
	return all, nil
}

// legalName is wider than a DNS name, as node IDs are, and narrow enough for any filesystem.
var legalName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]|\.[A-Za-z0-9_-])*$`)

// checkLegal returns an error for a name that can't be in a certificate or can't be a directory.
func checkLegal(name string) error {
	if len(name) > 253 || !legalName.MatchString(name) || !filepath.IsLocal(name) {
		return fmt.Errorf("%q can't be the name in a certificate: that has 1 to 253 letters, digits, dashes, underscores and single dots, and starts with a letter or digit", name)
	}
	return nil
}

// provide returns until when l is valid and the files that have to be written for that: with tls.crt and tls.key unless
// l is there already.
func (ca *authority) provide(l leaf, o MakeOptions) (time.Time, []file, error) {
	bundle := file{filepath.Join(l.dir, caFile), ca.bundle}
	have, err := readFile(filepath.Join(l.dir, certFile))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && o.Renew:
		cert, key, until, err := ca.sign(l, o.Valid)
		if err != nil {
			return until, nil, err
		}
		// The certificate last: it says that there is a key.
		return until, []file{bundle, {filepath.Join(l.dir, keyFile), key}, {filepath.Join(l.dir, certFile), cert}}, nil
	case err != nil:
		return time.Time{}, nil, err
	}
	until, err := ca.checkKept(l, have)
	if err != nil {
		return until, nil, fmt.Errorf("%s is there and isn't what is asked for, and is only replaced when it is renewed (--renew): %w", filepath.Join(l.dir, certFile), err)
	}
	if now, err := readFile(bundle.path); err == nil && bytes.Equal(now, ca.bundle) {
		return until, nil, nil
	}
	return until, []file{bundle}, nil
}

// checkKept returns an error unless a certificate that is there is l, signed by ca, with its key.
func (ca *authority) checkKept(l leaf, have []byte) (until time.Time, err error) {
	key, err := readFile(filepath.Join(l.dir, keyFile))
	if err != nil {
		return until, err
	}
	certs, err := certificates(certFile, have)
	if err != nil {
		return until, err
	}
	if _, err := tls.X509KeyPair(have, key); err != nil {
		return until, err
	}
	c := certs[0]
	if err := c.CheckSignatureFrom(ca.cert); err != nil {
		return until, fmt.Errorf("it was issued by %s, and not by %s: %w", word(c.Issuer.String()), describe(ca.cert), err)
	}
	if err := checkUsage(c, l.usage); err != nil {
		return until, err
	}
	return c.NotAfter, checkName(c, l.name)
}
