//go:build !windows

package mounter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// fakeShares are the SMB client of a fake node, as a shareHost, and the servers. Each share is a
// directory of this machine. A mapped root is a symbolic link to it, in a directory to which links
// of tests lead instead of a UNC path.
type fakeShares struct {
	symlinks
	mu       sync.Mutex
	shares   map[string]fakeShare // by root
	mappings map[string]shareMapping
}

type fakeShare struct{ dir, user, password string }

// AddShare gives the node an SMB server with a share, whose files are in dir: source is that of a
// Mount, without a path. The server lets the user of c in. Mappings do not outlive the Host.
func (w *FakeWindows) AddShare(source, dir string, c Credentials) error {
	text, err := linkText(source)
	if err != nil {
		return err
	}
	_, root, _ := parseUNC(text)
	if root+`\` != text {
		return fmt.Errorf("%w: invalid share %q: must have no path", ErrPath, source)
	}
	s := w.shares
	if err := os.Remove(s.local(root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares[root] = fakeShare{dir, userOf(c), c.Password}
	return nil
}

func (s *fakeShares) mapping(root string) (shareMapping, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.mappings[root]
	if !ok {
		return m, notExist("mapping", root)
	}
	return m, nil
}

func (s *fakeShares) mapShare(root string, c Credentials, privacy bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	share, ok := s.shares[root]
	switch {
	case !ok:
		return codeBadNetName
	case share.user != userOf(c) || share.password != c.Password:
		return codeLogonFailure
	}
	for other, m := range s.mappings {
		if rootServer(other) == rootServer(root) && m.user != userOf(c) {
			return codeSessionConflict
		}
	}
	if _, ok := s.mappings[root]; !ok {
		if err := os.MkdirAll(filepath.Dir(s.local(root)), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(share.dir, s.local(root)); err != nil {
			return err
		}
	}
	s.mappings[root] = shareMapping{user: userOf(c), privacy: privacy}
	return nil
}

func (s *fakeShares) unmapShare(root string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.mappings[root]; !ok {
		return notExist("unmap", root)
	}
	delete(s.mappings, root)
	return os.Remove(s.local(root))
}

func (s *fakeShares) probe(path string) error {
	root, isShare := rootOf(path)
	if !isShare {
		e, err := s.look(path)
		if err != nil {
			return errors.Join(codePathNotFound, err)
		}
		root, _ = rootOf(e.text)
	}
	if _, err := s.mapping(root); err != nil {
		return codeAccessDenied
	}
	if info, err := os.Stat(s.local(path)); err != nil || !info.IsDir() {
		return errors.Join(codeFileNotFound, err)
	}
	return nil
}

func (s *fakeShares) shareUsage(path string) (Usage, error) {
	if err := s.probe(path); err != nil {
		return Usage{}, err
	}
	return s.usage(path)
}

// shareText returns the UNC path for which a link leads to a path of this machine.
func (h symlinks) shareText(path string) (text string, ok bool) {
	rest, ok := strings.CutPrefix(path, h.shares+"/")
	if !ok || h.shares == "" {
		return "", false
	}
	return `\\` + strings.ReplaceAll(strings.TrimSuffix(rest, "/"), "/", `\`) + `\`, true
}
