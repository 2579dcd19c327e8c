package smb

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Keys of secrets, and names of the files in a directory of credentials.
const (
	userKey     = "username"
	passwordKey = "password"
	domainKey   = "domain"
	realmKey    = "realm"  // Kerberos realm
	ccacheKey   = "krb5cc" // Kerberos credential cache; in base64 in a secret
	guestKey    = "guest"  // "true": the guest account
)

// shareList is the file of shares. The file is read again at each use: it is small, and a mounted
// ConfigMap changes at any time.
type shareList struct {
	path   string
	report func(error)

	mu      sync.Mutex
	content string // of the last file that was valid
	entries []shareEntry
	bad     string // the last error that was reported
}

// shareEntry is a share in the file.
type shareEntry struct {
	Source      string `json:"source"`
	Credentials string `json:"credentials,omitempty"` // absolute path of a directory
	Guest       bool   `json:"guest,omitempty"`

	source mounter.ShareSource
}

// openShares reads the file of shares.
func openShares(cfg Config) (*shareList, error) {
	l := &shareList{path: cfg.Shares, report: cfg.Report}
	if cfg.Shares == "" {
		return l, nil
	}
	if err := l.read(); err != nil {
		return nil, fmt.Errorf("--smb-shares: %w", err)
	}
	return l, nil
}

// maxShares is the maximum size of the file in bytes.
const maxShares = 1 << 20

// read reads the file if it has changed. The caller holds mu, except at the start.
func (l *shareList) read() error {
	file, err := os.ReadFile(l.path)
	if err != nil {
		return err
	}
	if l.content == string(file) && l.entries != nil {
		return nil
	}
	entries, err := parseShares(file)
	if err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	l.content, l.entries = string(file), entries
	return nil
}

// parseShares parses the file of shares, YAML.
func parseShares(file []byte) ([]shareEntry, error) {
	if len(file) > maxShares {
		return nil, fmt.Errorf("the file has %d bytes: must be at most %d", len(file), maxShares)
	}
	list := struct {
		Shares []shareEntry `json:"shares"`
	}{}
	if err := yaml.UnmarshalStrict(file, &list); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range list.Shares {
		e := &list.Shares[i]
		var err error
		if e.source, err = parseSource(e.Source); err != nil {
			return nil, fmt.Errorf("share %d: %w", i+1, err)
		}
		switch name := records.Fold(e.source.String()); {
		case seen[name]:
			return nil, fmt.Errorf("share %d: %s occurs twice", i+1, e.source)
		case e.Guest == (e.Credentials != ""):
			return nil, fmt.Errorf("share %d, %s: must have either credentials or guest: true", i+1, e.source)
		case !e.Guest && !filepath.IsAbs(e.Credentials):
			return nil, fmt.Errorf("share %d, %s: credentials %q must be an absolute path of a directory", i+1,
				e.source, e.Credentials)
		default:
			seen[name] = true
		}
	}
	return append([]shareEntry{}, list.Shares...), nil
}

// current returns the shares of the file. A file that has become unreadable or invalid is reported
// once, and the last valid one counts.
func (l *shareList) current() []shareEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		return nil
	}
	err := l.read()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != l.bad && err != nil {
		l.report(fmt.Errorf("--smb-shares: %w: the shares that were read before stay in use", err))
	}
	l.bad = text
	return l.entries
}

// sources returns the sources of all shares.
func (l *shareList) sources() (all []mounter.ShareSource) {
	for _, e := range l.current() {
		all = append(all, e.source)
	}
	return all
}

// errNotListed reports a share for which this process has no credentials. Nothing is known of its
// volumes.
var errNotListed = fmt.Errorf("%w: no credentials", backend.ErrUnauthenticated)

// secretsOf returns the login of the secrets of a call, without a credential cache. A line break at
// the end of a value is not part of it.
func secretsOf(secrets map[string]string) client.Login {
	value := func(key string) string { return strings.TrimRight(secrets[key], "\r\n") }
	return client.Login{User: value(userKey), Password: value(passwordKey), Domain: value(domainKey),
		Realm: value(realmKey), Guest: value(guestKey) == "true"}
}

// readLogin reads a directory of credentials. Errors: backend.ErrUnauthenticated.
func readLogin(dir string) (client.Login, error) {
	secrets := map[string]string{}
	for _, key := range []string{userKey, passwordKey, domainKey, realmKey, ccacheKey} {
		file, err := os.ReadFile(filepath.Join(dir, key))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return client.Login{}, fmt.Errorf("%w: %w", backend.ErrUnauthenticated, err)
		}
		secrets[key] = string(file)
	}
	l := secretsOf(secrets)
	l.CCache = []byte(secrets[ccacheKey])
	if cmp.Or(l.User, secrets[ccacheKey]) == "" {
		return l, fmt.Errorf("%w: %s has neither a file %s nor a file %s", backend.ErrUnauthenticated, dir, userKey,
			ccacheKey)
	}
	return l, nil
}
