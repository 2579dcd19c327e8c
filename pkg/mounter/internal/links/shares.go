package links

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/keylock"
)

// mappings are the mappings of shares that the mounts of a links need. The root of a share has one
// mapping, however many directories are mounted. Links are its references: the mapping goes when no
// link leads to the root any more. A mapping that this driver did not record belongs to another
// program: it is used and never removed.
//
// A server has one user. Windows permits no second one (error 1219).
type mappings struct {
	host    ShareHost
	worker  *Worker
	flights inflight.Group[string, mounter.Usage]
	servers keylock.Locks[string] // held while mappings of a server are examined and made
	hasLink func(root string) bool
	records mappingRecords
	key     [32]byte // of digests

	mu       sync.Mutex
	pins     map[string]int               // uses of roots by calls whose links are not made yet
	removals map[string]*removal          // that wait or run, by root
	queue    []string                     // of roots
	removing bool                         // the goroutine of removals runs
	digests  map[string][sha256.Size]byte // of the credentials of mappings, if known, by root
}

// removal is the removal of a mapping. err is valid after done is closed.
type removal struct {
	begun bool
	done  chan struct{}
	err   error
}

func newMappings(host ShareHost, store recordStore, hasLink func(root string) bool, calls *Worker) (*mappings, error) {
	records, err := loadMappingRecords(store)
	if err != nil {
		return nil, err
	}
	s := &mappings{host: host, worker: calls, flights: inflight.Group[string, mounter.Usage]{Limit: inflight.NoLimit},
		hasLink: hasLink, records: records, pins: map[string]int{},
		removals: map[string]*removal{}, digests: map[string][sha256.Size]byte{}}
	rand.Read(s.key[:])
	return s, nil
}

// shareUse is a use of a share by a mount.
type shareUse struct {
	root, text  string
	credentials mounter.Credentials // none: the mapping must exist
	privacy     bool
	mounted     bool // the link is there already
}

// openShare opens the share of a mount of m whose link has a text. release ends the use of this
// call.
func (l *links) openShare(ctx context.Context, m mounter.Mount, root, text string, mounted bool) (release func(),
	err error) {
	if l.shares == nil {
		return nil, fmt.Errorf("%w: shares on this machine", errors.ErrUnsupported)
	}
	u := shareUse{root: root, text: text, mounted: mounted}
	if m.Kind == mounter.Share {
		u.credentials, u.privacy = m.Credentials, slices.Contains(m.Options, "seal")
		if err := u.credentials.Check(); err != nil {
			return nil, err
		}
		if u.credentials.Username == "" {
			return nil, errNoUser
		}
	}
	return l.shares.open(ctx, u)
}

// sourceOf is source for a mount of any kind. The source of a Share is the text of its link.
func (l *links) sourceOf(m mounter.Mount) (string, *linkRecord, error) {
	if m.Kind == mounter.Share {
		text, err := LinkText(m.Source)
		return text, nil, err
	}
	return l.source(m.Source)
}

// errNoUser is the error of credentials that Windows cannot map a share with.
var errNoUser = fmt.Errorf("%w: no user name: Windows nodes have neither guest access nor Kerberos tickets of a "+
	"secret: set username and password in the secret of the volume", mounter.ErrOption)

// open maps a share, if it is not mapped, and returns after the server has shown the directory. The
// mapping lasts until release, and then while links lead to the share.
func (s *mappings) open(ctx context.Context, u shareUse) (release func(), err error) {
	for range 3 { // a second call can cancel the removal for which this one waits
		replace, err := s.openOnce(ctx, u)
		if replace == "" {
			if err != nil {
				return nil, err
			}
			return func() { s.unpin(u.root) }, nil
		}
		if err := s.await(ctx, replace); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: the mapping of %s changes all the time", mounter.ErrBusy, u.root)
}

// openOnce is open, but for removals: it returns the root whose removal must end first. The root
// of u is pinned after success.
func (s *mappings) openOnce(ctx context.Context, u shareUse) (replace string, err error) {
	unlock, err := s.servers.Lock(ctx, RootServer(u.root))
	if err != nil {
		return "", fmt.Errorf("map %s: wait for another call to the server: %w", u.root, ctx.Err())
	}
	defer unlock()
	if !s.pin(u.root) {
		return u.root, nil
	}
	defer func() {
		if replace != "" || err != nil {
			s.unpin(u.root)
		}
	}()
	if replace, err = s.checkUser(u); replace != "" || err != nil {
		return replace, err
	}
	var m ShareMapping
	err = s.worker.do(ctx, "query the mapping of "+u.root, func() (err error) {
		m, err = s.host.Mapping(u.root)
		return err
	})
	switch {
	case err == nil:
		return s.check(ctx, u, m)
	case !errors.Is(err, fs.ErrNotExist):
		return "", Classify(err)
	case u.credentials.Username == "":
		return "", fmt.Errorf("%w: %s is not mapped any more: a stage of the volume, or a publish with its secret, "+
			"maps it again", mounter.ErrServer, u.root)
	}
	return "", s.mapRoot(ctx, u)
}

// checkUser returns ErrBusy if the server has another user than u, and the root of a mapping of
// another user that is not needed.
func (s *mappings) checkUser(u shareUse) (replace string, err error) {
	if u.credentials.Username == "" {
		return "", nil
	}
	for _, r := range s.records.all() {
		if RootServer(r.Root) != RootServer(u.root) || r.isOf(u.credentials) {
			continue
		}
		if s.used(r.Root, u.root) {
			return "", fmt.Errorf("%w: another user has %s mapped, and Windows permits one user for a server "+
				"(error 1219): use that user for all shares of %s, or end the pods with the other one", mounter.ErrBusy, r.Root,
				RootServer(u.root))
		}
		if r.Root != u.root { // its own mapping is replaced below, if it exists
			s.sweep()
			return r.Root, nil
		}
	}
	return "", nil
}

// check examines an existing mapping, and repairs it if the server does not answer.
func (s *mappings) check(ctx context.Context, u shareUse, m ShareMapping) (replace string, err error) {
	r, isOwn := s.records.get(u.root)
	inUse := s.used(u.root, u.root)
	otherUser := u.credentials.Username != "" && (isOwn && !r.isOf(u.credentials) ||
		!isOwn && m.User != "" && m.User != UserOf(u.credentials))
	lacksPrivacy := u.privacy && !(isOwn && r.Private || !isOwn && m.Privacy)
	switch {
	case (otherUser || lacksPrivacy) && isOwn && !inUse:
		return u.root, nil
	case otherUser && isOwn: // its pods came meanwhile
		return "", fmt.Errorf("%w: %s is mapped with another user, and Windows permits one user for a server (error "+
			"1219): use that user, or end the pods with the other one", mounter.ErrBusy, u.root)
	case lacksPrivacy && isOwn:
		return "", fmt.Errorf("%w: %s is mapped without encryption: end its pods, or use seal in all classes of the "+
			"share", mounter.ErrBusy, u.root)
	case otherUser:
		return "", fmt.Errorf("%w: %s is mapped by another program with another user, and Windows permits one user "+
			"for a server (error 1219): remove it with Remove-SmbGlobalMapping, or use its user", mounter.ErrBusy, u.root)
	case lacksPrivacy:
		return "", fmt.Errorf("%w: %s is mapped by another program, without encryption, or it is not known: remove it "+
			"with Remove-SmbGlobalMapping", mounter.ErrBusy, u.root)
	}
	probed := s.probe(ctx, u.root+`\`)
	switch {
	case probed == nil:
		if err := s.probe(ctx, u.text); err != nil {
			return "", err
		}
		return "", s.checkSecret(u)
	case ctx.Err() != nil:
		return "", probed
	case !isOwn:
		return "", fmt.Errorf("the mapping of %s is of another program, has the status %s, and is not repaired: "+
			"remove it with Remove-SmbGlobalMapping: %w", u.root, m.Status, probed)
	case u.credentials.Username == "":
		return "", fmt.Errorf("the mapping of %s is dead: a publish with the secret of the volume repairs it: %w",
			u.root, probed)
	case !inUse:
		return u.root, nil
	}
	if err := s.mapRoot(ctx, u); err != nil {
		return "", fmt.Errorf("the mapping of %s is in use, so it is not removed, and mapping it again does not "+
			"repair it: end the pods with this share: %w", u.root, err)
	}
	return "", nil
}

// mapRoot maps the root of u, and probes it. The call that maps pins the root itself, and runs on
// when ctx ends: a mapping that comes late has a record, and is removed.
func (s *mappings) mapRoot(ctx context.Context, u shareUse) error {
	s.flights.Forget() // a probe that hangs may be of the session before
	var hint error
	err := s.worker.do(ctx, "map "+u.root, func() (err error) {
		hint, err = s.mapRecorded(u)
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil: // hint may still change
		return err
	case errors.Is(err, fs.ErrNotExist) && hint != nil:
		return fmt.Errorf("map %s: %w", u.root, Classify(hint))
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: map %s: the system reports success, and made no mapping", mounter.ErrServer, u.root)
	case err != nil:
		return fmt.Errorf("map %s: %w", u.root, Classify(err))
	}
	if err := s.probe(ctx, u.root+`\`); err != nil {
		if hint != nil {
			err = fmt.Errorf("map %s: %w: %w", u.root, Classify(hint), err)
		}
		return err
	}
	s.mu.Lock()
	s.digests[u.root] = s.digest(u.credentials)
	s.mu.Unlock()
	return s.probe(ctx, u.text)
}

// mapRecorded maps the root of u. hint is the error of the system; err that of the look at the
// result. The record comes first: a record without a mapping has no effect, but a mapping without a
// record is never removed. A share that has encryption keeps it.
func (s *mappings) mapRecorded(u shareUse) (hint, err error) {
	if !s.pin(u.root) {
		return nil, fmt.Errorf("%w: its old mapping is being removed", mounter.ErrBusy)
	}
	defer s.unpin(u.root)
	r := mappingRecord{Root: u.root, User: userDigest(u.root, u.credentials), Private: u.privacy}
	if old, ok := s.records.get(u.root); ok && old.User == r.User {
		r.Private = r.Private || old.Private
	}
	if err := s.records.put(r); err != nil {
		return nil, err
	}
	hint = guard.Do(func() error { return s.host.MapShare(u.root, u.credentials, r.Private) })
	_, err = s.host.Mapping(u.root)
	return hint, err
}

// checkSecret returns ErrCredentials if the mapping of a mounted share is known to have another
// password than u. Windows has no call that changes it.
func (s *mappings) checkSecret(u shareUse) error {
	if u.credentials.Username == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.digests[u.root]
	if !known {
		s.digests[u.root] = s.digest(u.credentials)
	}
	if known && u.mounted && old != s.digest(u.credentials) {
		return fmt.Errorf("%w: Windows uses the password with which %s was mapped until its last pod ends",
			mounter.ErrCredentials, u.root)
	}
	return nil
}

func (s *mappings) digest(c mounter.Credentials) (d [sha256.Size]byte) {
	h := hmac.New(sha256.New, s.key[:])
	for _, text := range []string{c.Domain, c.Username, c.Password} {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	h.Sum(d[:0])
	return d
}

// probe asks the server for a directory, until ctx ends. path may be a link to it.
func (s *mappings) probe(ctx context.Context, path string) error {
	_, err := s.flights.Do(ctx, "ask the server for "+path, func() (mounter.Usage, error) {
		return mounter.Usage{}, s.host.Probe(path)
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", path, Classify(err))
	}
	return err
}
