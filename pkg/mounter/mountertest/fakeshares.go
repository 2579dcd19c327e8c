//go:build !windows

package mountertest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// fakeShares are the SMB client of a fake node, as a ShareHost, and the servers. Each share is a
// directory of this machine. A mapped root is a symbolic link to it, in a directory to which links
// of tests lead instead of a UNC path.
type fakeShares struct {
	symlinks
	mu       sync.Mutex
	shares   map[string]fakeShare // by root
	mappings map[string]links.ShareMapping
}

type fakeShare struct{ dir, user, password string }

// AddShare gives the node an SMB server with a share, whose files are in dir: source is that of a
// Mount, without a path. The server lets the user of c in. Mappings do not outlive the Host.
func (w *FakeWindows) AddShare(source, dir string, c mounter.Credentials) error {
	text, err := links.LinkText(source)
	if err != nil {
		return err
	}
	_, root, _ := links.ParseUNC(text)
	if root+`\` != text {
		return fmt.Errorf("%w: invalid share %q: must have no path", mounter.ErrPath, source)
	}
	s := w.shares
	if err := os.Remove(s.local(root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares[root] = fakeShare{dir, links.UserOf(c), c.Password}
	return nil
}

func (s *fakeShares) Mapping(root string) (links.ShareMapping, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.mappings[root]
	if !ok {
		return m, links.NotExist("mapping", root)
	}
	return m, nil
}

func (s *fakeShares) MapShare(root string, c mounter.Credentials, privacy bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	share, ok := s.shares[root]
	switch {
	case !ok:
		return links.CodeBadNetName
	case share.user != links.UserOf(c) || share.password != c.Password:
		return links.CodeLogonFailure
	}
	for other, m := range s.mappings {
		if links.RootServer(other) == links.RootServer(root) && m.User != links.UserOf(c) {
			return links.CodeSessionConflict
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
	s.mappings[root] = links.ShareMapping{User: links.UserOf(c), Privacy: privacy}
	return nil
}

func (s *fakeShares) UnmapShare(root string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.mappings[root]; !ok {
		return links.NotExist("unmap", root)
	}
	delete(s.mappings, root)
	return os.Remove(s.local(root))
}

func (s *fakeShares) Probe(path string) error {
	root, isShare := links.RootOf(path)
	if !isShare {
		e, err := s.Entry(path)
		if err != nil {
			return errors.Join(links.CodePathNotFound, err)
		}
		root, _ = links.RootOf(e.Text)
	}
	if _, err := s.Mapping(root); err != nil {
		return links.CodeAccessDenied
	}
	if info, err := os.Stat(s.local(path)); err != nil || !info.IsDir() {
		return errors.Join(links.CodeFileNotFound, err)
	}
	return nil
}

func (s *fakeShares) ShareUsage(path string) (mounter.Usage, error) {
	if err := s.Probe(path); err != nil {
		return mounter.Usage{}, err
	}
	return s.Usage(path)
}

// shareText returns the UNC path for which a link leads to a path of this machine.
func (h symlinks) shareText(path string) (text string, ok bool) {
	rest, ok := strings.CutPrefix(path, h.shares+"/")
	if !ok || h.shares == "" {
		return "", false
	}
	return `\\` + strings.ReplaceAll(strings.TrimSuffix(rest, "/"), "/", `\`) + `\`, true
}
