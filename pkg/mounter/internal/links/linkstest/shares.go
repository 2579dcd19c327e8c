package linkstest

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// ShareTrial is a share for the tests of a ShareHost. No other program uses it.
type ShareTrial struct {
	Root        string // as RootOf, of an existing share with no mapping
	Missing     string // a root of the same server that does not exist
	Credentials mounter.Credentials
	Dir         string // an existing local directory, for links
}

// MappedRoot reports whether a root is mapped. A mapping may come in spite of an error, and may be
// missing without one.
func MappedRoot(t *testing.T, h links.ShareHost, root string) bool {
	t.Helper()
	_, err := h.Mapping(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("query of %s: %v", root, err)
	}
	return err == nil
}

// ShareHost tests the operations of a ShareHost, and of the links to a share. All hosts pass it.
func ShareHost(t *testing.T, h links.ShareHost, local links.LinkHost, s ShareTrial) {
	root := s.Root + `\`
	t.Cleanup(func() {
		for _, r := range []string{s.Root, s.Missing} {
			if err := h.UnmapShare(r); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s stays mapped: %v", r, err)
			}
		}
	})
	if MappedRoot(t, h, s.Root) {
		t.Fatalf("%s is mapped before the test", s.Root)
	}
	if err := h.UnmapShare(s.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove a missing mapping: %v", err)
	}
	// Before the first session with the server: Windows may use a session for other credentials.
	wrong := s.Credentials
	wrong.Password += "x"
	hint := h.MapShare(s.Root, wrong, false)
	if MappedRoot(t, h, s.Root) {
		t.Errorf("mapped with a wrong password, %v", hint)
	} else if !errors.Is(links.Classify(hint), mounter.ErrAccess) {
		t.Errorf("a wrong password: %v", hint)
	}
	if hint := h.MapShare(s.Missing, s.Credentials, false); MappedRoot(t, h, s.Missing) {
		t.Errorf("a missing share is mapped, %v", hint)
	}

	hint = h.MapShare(s.Root, s.Credentials, false)
	m, err := h.Mapping(s.Root)
	if err != nil {
		t.Fatalf("no mapping: %v, %v", hint, err)
	}
	if hint != nil || m.Status != 0 {
		t.Errorf("a new mapping: %v, %v", m, hint)
	}
	if err := h.Probe(root); err != nil {
		t.Errorf("the root: %v", err)
	}
	if err := h.Probe(root + `causeway-missing\`); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if u, err := h.ShareUsage(root); err != nil || u.TotalBytes <= 0 || u.AvailableBytes < 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	link := local.Form().Join(s.Dir, "link")
	if err := local.Link(root, link); err != nil {
		t.Fatal(err)
	}
	if e, err := local.Entry(link); err != nil || e != (links.LinkEntry{Kind: links.DirLink, Text: root}) {
		t.Errorf("the link is %+v, %v", e, err)
	}
	if err := h.Probe(link); err != nil {
		t.Errorf("through a link: %v", err)
	}
	if hint := h.MapShare(s.Root, s.Credentials, false); !MappedRoot(t, h, s.Root) {
		t.Errorf("mapped again, it is gone: %v", hint)
	}
	if err := h.Probe(root); err != nil {
		t.Errorf("mapped again: %v", err)
	}

	if err := h.UnmapShare(s.Root); err != nil {
		t.Errorf("remove: %v", err)
	}
	if MappedRoot(t, h, s.Root) {
		t.Error("still mapped")
	}
	if err := h.UnmapShare(s.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove again: %v", err)
	}
	if e, err := local.Entry(link); err != nil || e.Kind != links.DirLink {
		t.Errorf("the link without its share is %+v, %v", e, err)
	}
	if err := local.Unlink(link); err != nil {
		t.Error(err)
	}
}
