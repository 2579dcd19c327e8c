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

// caKeyFile is the key of the CA, beside caFile.
const caKeyFile = "ca.key"

// Values of Made.Kind.
const (
	KindCA     = "CA"
	KindRouter = "router"
	KindNode   = "node"
	KindShared = "nodes" // a certificate that all nodes share
)

// MakeOptions are the certificates that Make makes.
type MakeOptions struct {
	Client string        // name of the router; "": no certificate for a router
	Nodes  []string      // IDs of nodes, as NodeGetInfo returns them: a certificate for each
	Shared string        // name in a certificate for all nodes; "": none
	Valid  time.Duration // of all certificates but that of the CA; 0: a year
	Renew  bool          // replace existing certificates, but not the CA
}

// Made is a certificate that exists when Make returns.
type Made struct {
	Kind  string
	Dir   string // directory of ca.crt and, except for the CA, of tls.crt and tls.key
	Name  string
	Until time.Time
	New   bool // made by this call
}

// Make makes certificates for clusters without cert-manager:
//
//	dir/ca.crt  dir/ca.key       the CA
//	dir/router/                  ca.crt, tls.crt and tls.key of the router: a client certificate
//	dir/nodes/<ID>/              the same of a node: a server certificate
//	dir/nodes-shared/            the same of all nodes
//
// Keys are ECDSA P-256 in PKCS#8. Files have mode 0600 and new directories 0700; Windows has no
// such modes, so dir should belong to the administrator there. Existing files stay, so that nodes
// can be added and an interrupted Make can be repeated; Renew replaces certificates. ca.crt may
// have several CAs: the first signs, all are accepted, and the copies of ca.crt are updated. The CA
// is the first result. Make writes nothing if a name is not legal in a certificate and as a
// directory, or if an existing file does not fit the options.
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

// leaf is a requested certificate.
type leaf struct {
	kind, dir, name string
	usage           x509.ExtKeyUsage
}

// leaves returns the requested certificates below dir. leaves checks all names.
func (o MakeOptions) leaves(dir string) ([]leaf, error) {
	var all []leaf
	if o.Valid < 0 {
		return nil, fmt.Errorf("certificates cannot be valid for %s", o.Valid)
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

// legalName matches more than DNS names, as node IDs do, and only names that every filesystem
// permits.
var legalName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]|\.[A-Za-z0-9_-])*$`)

// checkLegal returns an error for a name that a certificate or a directory cannot have.
func checkLegal(name string) error {
	if len(name) > 253 || !legalName.MatchString(name) || !filepath.IsLocal(name) {
		return fmt.Errorf("%q cannot be the name in a certificate: that has 1 to 253 letters, digits, dashes, "+
			"underscores and single dots, and starts with a letter or digit", name)
	}
	return nil
}

// provide returns the end of l's validity and the files to write: with tls.crt and tls.key unless l
// exists.
func (ca *authority) provide(l leaf, o MakeOptions) (time.Time, []file, error) {
	bundle := file{filepath.Join(l.dir, caFile), ca.bundle}
	have, err := readFile(filepath.Join(l.dir, certFile))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && o.Renew:
		cert, key, until, err := ca.sign(l, o.Valid)
		if err != nil {
			return until, nil, err
		}
		// The certificate last: it reports that there is a key.
		return until, []file{bundle, {filepath.Join(l.dir, keyFile), key}, {filepath.Join(l.dir, certFile), cert}}, nil
	case err != nil:
		return time.Time{}, nil, err
	}
	until, err := ca.checkKept(l, have)
	if err != nil {
		return until, nil, fmt.Errorf("%s exists and differs from the request, and is only replaced with --renew: "+
			"%w", filepath.Join(l.dir, certFile), err)
	}
	if now, err := readFile(bundle.path); err == nil && bytes.Equal(now, ca.bundle) {
		return until, nil, nil
	}
	return until, []file{bundle}, nil
}

// checkKept returns an error unless the existing certificate is that of l, signed by ca, with its
// key.
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
		return until, fmt.Errorf("it was issued by %s, and not by %s: %w", word(c.Issuer.String()), describe(ca.cert),
			err)
	}
	if err := checkUsage(c, l.usage); err != nil {
		return until, err
	}
	return c.NotAfter, checkName(c, l.name)
}
