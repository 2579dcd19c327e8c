package mounter

import (
	"errors"
	"io/fs"
	"testing"
)

// shareTrial is a share for the tests of a shareHost. No other program uses it.
type shareTrial struct {
	root        string // as rootOf, of an existing share with no mapping
	missing     string // a root of the same server that does not exist
	credentials Credentials
	dir         string // an existing local directory, for links
}

// mappedRoot reports whether a root is mapped. A mapping may come in spite of an error, and may be
// missing without one.
func mappedRoot(t *testing.T, h shareHost, root string) bool {
	t.Helper()
	_, err := h.mapping(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("query of %s: %v", root, err)
	}
	return err == nil
}

// testShareHost tests the operations of a shareHost, and of the links to a share. All hosts pass it.
func testShareHost(t *testing.T, h shareHost, links linkHost, s shareTrial) {
	root := s.root + `\`
	t.Cleanup(func() {
		for _, r := range []string{s.root, s.missing} {
			if err := h.unmapShare(r); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s stays mapped: %v", r, err)
			}
		}
	})
	if mappedRoot(t, h, s.root) {
		t.Fatalf("%s is mapped before the test", s.root)
	}
	if err := h.unmapShare(s.root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove a missing mapping: %v", err)
	}
	// Before the first session with the server: Windows may use a session for other credentials.
	wrong := s.credentials
	wrong.Password += "x"
	hint := h.mapShare(s.root, wrong, false)
	if mappedRoot(t, h, s.root) {
		t.Errorf("mapped with a wrong password, %v", hint)
	} else if !errors.Is(classify(hint), ErrAccess) {
		t.Errorf("a wrong password: %v", hint)
	}
	if hint := h.mapShare(s.missing, s.credentials, false); mappedRoot(t, h, s.missing) {
		t.Errorf("a missing share is mapped, %v", hint)
	}

	hint = h.mapShare(s.root, s.credentials, false)
	m, err := h.mapping(s.root)
	if err != nil {
		t.Fatalf("no mapping: %v, %v", hint, err)
	}
	if hint != nil || m.status != 0 {
		t.Errorf("a new mapping: %v, %v", m, hint)
	}
	if err := h.probe(root); err != nil {
		t.Errorf("the root: %v", err)
	}
	if err := h.probe(root + `causeway-missing\`); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if u, err := h.shareUsage(root); err != nil || u.TotalBytes <= 0 || u.AvailableBytes < 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	link := links.form().join(s.dir, "link")
	if err := links.link(root, link); err != nil {
		t.Fatal(err)
	}
	if e, err := links.look(link); err != nil || e != (linkEntry{dirLink, root}) {
		t.Errorf("the link is %+v, %v", e, err)
	}
	if err := h.probe(link); err != nil {
		t.Errorf("through a link: %v", err)
	}
	if hint := h.mapShare(s.root, s.credentials, false); !mappedRoot(t, h, s.root) {
		t.Errorf("mapped again, it is gone: %v", hint)
	}
	if err := h.probe(root); err != nil {
		t.Errorf("mapped again: %v", err)
	}

	if err := h.unmapShare(s.root); err != nil {
		t.Errorf("remove: %v", err)
	}
	if mappedRoot(t, h, s.root) {
		t.Error("still mapped")
	}
	if err := h.unmapShare(s.root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove again: %v", err)
	}
	if e, err := links.look(link); err != nil || e.kind != dirLink {
		t.Errorf("the link without its share is %+v, %v", e, err)
	}
	if err := links.unlink(link); err != nil {
		t.Error(err)
	}
}

func TestTheModelIsAHostOfShares(t *testing.T) {
	m := newModel()
	if err := (modelFiles{m}).mkdirAll(`C:\test`); err != nil {
		t.Fatal(err)
	}
	testShareHost(t, newModelShares(m), m, shareTrial{root: `\\srv\share`, missing: `\\srv\missing`,
		credentials: Credentials{Username: "user", Password: "Passw0rd"}, dir: `C:\test`})
}
