package smb

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// store is the directory of a share that a class names as its source, with a session.
type store struct {
	*Backend
	share      share
	login      client.Login
	source     mounter.ShareSource
	mayPrepare bool // the call may make the directories of the store
	untouched  bool // the last deletion put nothing into the trash
	trashed    bool // a directory may have been moved into the trash
}

// store opens the store of a source. The caller calls close.
func (b *Backend) store(ctx context.Context, source mounter.ShareSource, secrets map[string]string,
	use client.Use) (*store, error) {
	login, err := b.login(source, secrets, nil)
	if err != nil {
		return nil, err
	}
	share, err := b.openShare(ctx, source, login, use)
	if err != nil {
		return nil, err
	}
	return &store{Backend: b, share: share, login: login, source: source}, nil
}

func (s *store) close() { s.share.Release() }

// shareName returns the share of the source.
func (s *store) shareName() mounter.ShareSource {
	name := s.source
	name.Path = ""
	return name
}

// path returns the path on the share of a path in the store.
func (s *store) path(elements ...string) string {
	return s.records().Path(elements...)
}

// meta returns the path on the share of a path in .causeway.
func (s *store) meta(elements ...string) string {
	return s.records().Meta(elements...)
}

// records returns the records of the store.
func (s *store) records() *records.Store { return &records.Store{Share: s.share, Source: s.source} }

// markPrepared remembers that the store has its directories.
func (s *store) markPrepared() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared[records.Fold(s.source.String())] = true
}

// Directories and files of a store, beside those of package records.
const (
	trashDir    = "trash"
	reserveFile = "reserve"
)

// login returns how to log in to the server of a source: with the secrets of a call, as a guest or
// by the node's Kerberos tickets as its mount options say, or with the credentials of the entry for
// the longest part of the source. Errors: backend.ErrUnauthenticated.
func (b *Backend) login(source mounter.ShareSource, secrets map[string]string, options []string) (client.Login, error) {
	if len(secrets) > 0 {
		l := secretsOf(secrets)
		l.Krb5Conf = b.cfg.Krb5Conf
		if encoded := secrets[ccacheKey]; encoded != "" {
			file, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
			if err != nil {
				return l, fmt.Errorf("%w: the key %s of the secret must be base64", backend.ErrUnauthenticated,
					ccacheKey)
			}
			l.CCache = file
		}
		if !l.Guest && !l.Kerberos() && l.User == "" {
			return l, fmt.Errorf("%w: the secret for %s has no key %s", backend.ErrUnauthenticated, source, userKey)
		}
		return l, nil
	}
	if slices.Contains(options, "guest") {
		return client.Login{Guest: true}, nil
	}
	var best *shareEntry
	for _, e := range b.shares.current() {
		if contains(records.Fold, e.source, source) && (best == nil || len(e.source.Path) > len(best.source.Path)) {
			best = &e
		}
	}
	switch {
	case best == nil && b.cfg.Shares == "":
		return client.Login{}, fmt.Errorf("%w: the call has no secret for %s: name a Secret in the class or the "+
			"volume, or use the mount option guest", backend.ErrUnauthenticated, source)
	case best == nil:
		return client.Login{}, fmt.Errorf("%w for %s: list the share in %s, or name a Secret in the class",
			errNotListed, source, b.cfg.Shares)
	case best.Guest:
		return client.Login{Guest: true}, nil
	}
	l, err := readLogin(best.Credentials)
	l.Krb5Conf = b.cfg.Krb5Conf
	return l, err
}
