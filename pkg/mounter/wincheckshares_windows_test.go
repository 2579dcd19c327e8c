package mounter

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The checks of shares need a server, which environment variables name: a share as \\server\share,
// and a user as NAME or DOMAIN\NAME. The second share is on the same server.
const (
	shareVariable    = "CAUSEWAY_CHECK_SHARE"
	userVariable     = "CAUSEWAY_CHECK_USER"
	passwordVariable = "CAUSEWAY_CHECK_PASSWORD"
	second           = "2" // the suffix of the variables for the second share, and its user
)

// checkedShare returns the share of the checks, or the second one. The test is skipped without it.
func checkedShare(t *testing.T, suffix string) shareTrial {
	t.Helper()
	share := os.Getenv(shareVariable + suffix)
	if share == "" {
		t.Skipf("no share: set %s, %s and %s", shareVariable+suffix, userVariable+suffix, passwordVariable+suffix)
	}
	_, root, ok := parseUNC(strings.TrimSuffix(share, `\`) + `\`)
	if !ok {
		t.Fatalf(`invalid %s %q: must be \\server\share`, shareVariable+suffix, share)
	}
	c := Credentials{Username: os.Getenv(userVariable + suffix), Password: os.Getenv(passwordVariable + suffix)}
	if domain, name, ok := strings.Cut(c.Username, `\`); ok {
		c.Domain, c.Username = domain, name
	}
	return shareTrial{root: root, missing: `\\` + rootServer(root) + `\causeway-missing`, credentials: c, dir: t.TempDir()}
}

// mapped maps a share, and removes the mapping when the test is over. It returns the finding if the
// share is not mapped.
func (s shareTrial) mapped(t *testing.T, privacy bool) string {
	t.Helper()
	h := windowsShares{}
	hint := h.mapShare(s.root, s.credentials, privacy)
	if !mappedRoot(t, h, s.root) {
		return fmt.Sprintf("%s is not mapped: %v", s.root, hint)
	}
	t.Cleanup(func() {
		if err := h.unmapShare(s.root); err != nil {
			t.Errorf("%s stays mapped: %v", s.root, err)
		}
	})
	if err := h.probe(s.root + `\`); err != nil {
		return fmt.Sprintf("%s does not answer: %v, mapped with %v", s.root, err, hint)
	}
	return ""
}

// testChecksOfShares tries shares.
func testChecksOfShares(t *testing.T) {
	t.Run("host", func(t *testing.T) { testShareHost(t, windowsShares{}, windowsLinks{}, checkedShare(t, "")) })
	tryAll(t, shareAssumptions)
}

// shareAssumptions are those about shares.
var shareAssumptions = []assumption{
	{"shares", "a server has one user: a second share with another user is error 1219", func(t *testing.T) string {
		first, other := checkedShare(t, ""), checkedShare(t, second)
		if rootServer(first.root) != rootServer(other.root) || userOf(first.credentials) == userOf(other.credentials) {
			t.Fatalf("%s and %s must be on one server, and have two users", shareVariable, shareVariable+second)
		}
		if found := first.mapped(t, false); found != "" {
			return found
		}
		h := windowsShares{}
		hint := h.mapShare(other.root, other.credentials, false)
		if mappedRoot(t, h, other.root) {
			defer h.unmapShare(other.root)
			return fmt.Sprintf("it is mapped, %v: one user for each share is enough", hint)
		}
		if !errors.Is(hint, codeSessionConflict) {
			return fmt.Sprint("another error: ", hint)
		}
		return asAssumed
	}},
	{"shares", "a mapping that demands encryption says so", func(t *testing.T) string {
		s := checkedShare(t, "")
		if found := s.mapped(t, true); found != "" {
			return found + ": the server must support encryption of SMB 3"
		}
		if m, err := (windowsShares{}).mapping(s.root); err != nil || !m.privacy {
			return fmt.Sprintf("%+v, %v", m, err)
		}
		return asAssumed
	}},
	{"shares", "data flows through a link to a share", func(t *testing.T) string {
		s := checkedShare(t, "")
		if found := s.mapped(t, false); found != "" {
			return found
		}
		link, name := s.dir+`\link`, `\causeway-check`
		if err := (windowsLinks{}).link(s.root+`\`, link); err != nil {
			return err.Error()
		}
		if err := os.WriteFile(link+name, []byte("data"), 0o600); err != nil {
			return err.Error()
		}
		defer os.Remove(s.root + name)
		if data, err := os.ReadFile(s.root + name); err != nil || string(data) != "data" {
			return fmt.Sprintf("on the share: %q, %v", data, err)
		}
		return asAssumed
	}},
}
