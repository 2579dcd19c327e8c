package links

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// modelShares are the SMB client of a model, and the servers. A mapping is a session with a server
// for the whole node. It outlives a reboot or not, then with the status Disconnected and a session
// that the server has forgotten. A server has one user. Its zero fields are a server that answers.
type modelShares struct {
	m  *model
	mu sync.Mutex
	// dirs are the directories of the shares, by their paths with a backslash at the end.
	dirs      map[string]bool
	passwords map[string]string // by user, as UserOf
	away      map[string]bool   // servers that do not answer
	mappings  map[string]*modelMapping
	made      int  // mappings that were made
	persists  bool // mappings outlive a reboot
	noLinks   bool // a policy forbids links from local to remote
	// hook, if not nil, is called before each operation, without a lock. It may block, panic, or
	// return the error of the operation, which then has no effect.
	hook func(op, root string) error
	// hint, if not nil, changes the result of MapShare.
	hint func(error) error
	free bool // no mapping is needed: a domain lets the node in
}

type modelMapping struct {
	ShareMapping
	password string
	dead     bool // the server has forgotten the session
	foreign  bool // of another program
}

func newModelShares(m *model) *modelShares {
	return &modelShares{m: m, passwords: map[string]string{"user": "Passw0rd", "other": "Passw0rd"},
		away: map[string]bool{},
		mappings: map[string]*modelMapping{}, dirs: map[string]bool{
			`\\srv\share\`: true, `\\srv\share\a\`: true, `\\srv\share\b\`: true, `\\srv\second\`: true, `\\srv2\share\`: true}}
}

func (s *modelShares) begin(op, root string) error {
	if s.hook != nil {
		return s.hook(op, root)
	}
	return nil
}

// change is a step of model.before and model.after.
func (s *modelShares) change(op, root string, change func() error) error {
	if err := s.begin(op, root); err != nil {
		return err
	}
	if s.m.before != nil {
		if err := s.m.before(op, root); err != nil {
			return err
		}
	}
	s.mu.Lock()
	err := change()
	s.mu.Unlock()
	if err == nil && s.m.after != nil {
		err = s.m.after(op, root)
	}
	return err
}

func (s *modelShares) Mapping(root string) (ShareMapping, error) {
	if err := s.begin("query", root); err != nil {
		return ShareMapping{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.mappings[root]
	if !ok {
		return ShareMapping{}, NotExist("mapping", root)
	}
	return m.ShareMapping, nil
}

func (s *modelShares) MapShare(root string, c mounter.Credentials, privacy bool) error {
	err := s.change("map", root, func() error {
		password, known := s.passwords[UserOf(c)]
		switch {
		case s.away[RootServer(root)]:
			return codeBadNetPath
		case !s.dirs[root+`\`]:
			return CodeBadNetName
		case !known || password != c.Password:
			return CodeLogonFailure
		}
		for other, m := range s.mappings {
			if RootServer(other) == RootServer(root) && m.User != UserOf(c) {
				return CodeSessionConflict
			}
		}
		m := modelMapping{ShareMapping: ShareMapping{0, UserOf(c), privacy}, password: c.Password}
		if old := s.mappings[root]; old != nil {
			m.foreign = old.foreign
		}
		s.mappings[root] = &m
		s.made++
		return nil
	})
	if s.hint != nil {
		return s.hint(err)
	}
	return err
}

func (s *modelShares) UnmapShare(root string) error {
	return s.change("unmap", root, func() error {
		if s.mappings[root] == nil {
			return fs.ErrNotExist
		}
		delete(s.mappings, root)
		return nil
	})
}

func (s *modelShares) Probe(path string) error {
	text := path
	if !strings.HasPrefix(path, `\\`) {
		e, err := s.m.Entry(path)
		if err != nil || e.Kind != DirLink {
			return errors.Join(err, CodePathNotFound)
		}
		if s.noLinks {
			return codeSymlinkClassIsOff
		}
		text = e.Text
	}
	if err := s.begin("probe", text); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, root, ok := ParseUNC(text)
	m := s.mappings[root]
	switch {
	case !ok:
		return fmt.Errorf("model: %q is not the path of a share", text)
	case s.away[RootServer(root)]:
		return codeBadNetPath
	case !s.dirs[root+`\`]:
		return CodeBadNetName
	case s.free:
	case m == nil:
		return CodeAccessDenied
	case m.dead:
		return codeNetNameDeleted
	}
	if !s.dirs[text] {
		return CodeFileNotFound
	}
	return nil
}

func (s *modelShares) ShareUsage(path string) (mounter.Usage, error) {
	err := s.Probe(path)
	return mounter.Usage{TotalBytes: 100, UsedBytes: 40, AvailableBytes: 60}, err
}

// reboot loses the mappings, or the sessions of them.
func (s *modelShares) reboot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for root, m := range s.mappings {
		m.dead, m.Status = true, 2
		if !s.persists {
			delete(s.mappings, root)
		}
	}
}

func (s *modelShares) mapped() (roots []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for root := range s.mappings {
		roots = append(roots, root)
	}
	return roots
}

// with calls f with a mapping, which it makes if it is missing.
func (s *modelShares) with(root string, f func(m *modelMapping)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mappings[root] == nil {
		s.mappings[root] = &modelMapping{}
	}
	f(s.mappings[root])
}

// linkShareBench is a bench on a model with shares.
type linkShareBench struct {
	*bench
	model    *model
	shares   *modelShares
	links    *links
	store    *modelStore // of mounts
	mappings *modelStore // records
}

func newLinkShareBench(t *testing.T) *linkShareBench {
	t.Helper()
	b, m, store := newModelBench(t)
	sb := &linkShareBench{bench: b, model: m, shares: newModelShares(m), store: store,
		mappings: &modelStore{m: m, files: map[string][]byte{}}}
	for _, path := range []string{sb.staging(0), sb.pod(0), sb.pod(1), sb.staging(1)} {
		b.Mkdir(WindowsPaths.dir(path))
	}
	sb.start()
	t.Cleanup(sb.waitForRemovals)
	return sb
}

// start starts a driver on the node.
func (b *linkShareBench) start() {
	b.T.Helper()
	b.links = startLinks(b.T, b.model, b.Kubelet, b.store)
	if err := b.links.addShares(b.shares, b.mappings, NewWorker()); err != nil {
		b.T.Fatal(err)
	}
	b.Host = Host{b.links}
}

// waitForRemovals waits until no mapping is being removed.
func (b *linkShareBench) waitForRemovals() {
	s := b.links.shares
	for {
		s.mu.Lock()
		var r *removal
		for _, r = range s.removals {
			break
		}
		s.mu.Unlock()
		if r == nil {
			return
		}
		<-r.done
	}
}

func (b *linkShareBench) staging(n int) string {
	return b.Path("plugins", "kubernetes.io", "csi", "smb", fmt.Sprint("hash", n), "globalmount")
}

func (b *linkShareBench) pod(n int) string {
	return b.Path("pods", fmt.Sprint("u", n), "volumes", "kubernetes.io~csi", "pv", "mount")
}

// share is a Mount of a directory of a share.
func share(source string) mounter.Mount {
	return mounter.Mount{Kind: mounter.Share, Source: source, Credentials: mounter.Credentials{Username: "user",
		Password: "Passw0rd"}}
}
