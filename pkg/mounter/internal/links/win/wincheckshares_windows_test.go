package win

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
)

// The checks of shares need a server, which environment variables name: a share as \\server\share,
// and a user as NAME or DOMAIN\NAME. The second share is on the same server.
const (
	shareVariable    = "CAUSEWAY_CHECK_SHARE"
	userVariable     = "CAUSEWAY_CHECK_USER"
	passwordVariable = "CAUSEWAY_CHECK_PASSWORD"
	second           = "2" // the suffix of the variables for the second share, and its user
)

// shareTrial is a share for the checks.
type shareTrial struct{ linkstest.ShareTrial }

// checkedShare returns the share of the checks, or the second one. The test is skipped without it.
func checkedShare(t *testing.T, suffix string) shareTrial {
	t.Helper()
	share := os.Getenv(shareVariable + suffix)
	if share == "" {
		t.Skipf("no share: set %s, %s and %s", shareVariable+suffix, userVariable+suffix, passwordVariable+suffix)
	}
	_, root, ok := links.ParseUNC(strings.TrimSuffix(share, `\`) + `\`)
	if !ok {
		t.Fatalf(`invalid %s %q: must be \\server\share`, shareVariable+suffix, share)
	}
	c := mounter.Credentials{Username: os.Getenv(userVariable + suffix), Password: os.Getenv(passwordVariable + suffix)}
	if domain, name, ok := strings.Cut(c.Username, `\`); ok {
		c.Domain, c.Username = domain, name
	}
	return shareTrial{linkstest.ShareTrial{Root: root, Missing: `\\` + links.RootServer(root) + `\causeway-missing`,
		Credentials: c, Dir: t.TempDir()}}
}

// mapped maps a share, and removes the mapping when the test is over. It returns the finding if the
// share is not mapped.
func (s shareTrial) mapped(t *testing.T, privacy bool) string {
	t.Helper()
	h := windowsShares{}
	hint := h.MapShare(s.Root, s.Credentials, privacy)
	if !linkstest.MappedRoot(t, h, s.Root) {
		return fmt.Sprintf("%s is not mapped: %v", s.Root, hint)
	}
	t.Cleanup(func() {
		if err := h.UnmapShare(s.Root); err != nil {
			t.Errorf("%s stays mapped: %v", s.Root, err)
		}
	})
	if err := h.Probe(s.Root + `\`); err != nil {
		return fmt.Sprintf("%s does not answer: %v, mapped with %v", s.Root, err, hint)
	}
	return ""
}

// testChecksOfShares tries shares.
func testChecksOfShares(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		linkstest.ShareHost(t, windowsShares{}, windowsLinks{}, checkedShare(t, "").ShareTrial)
	})
	tryAll(t, shareAssumptions)
}

// shareAssumptions are those about shares.
var shareAssumptions = []assumption{
	{"shares", "a server has one user: a second share with another user is error 1219", func(t *testing.T) string {
		first, other := checkedShare(t, ""), checkedShare(t, second)
		if links.RootServer(first.Root) != links.RootServer(other.Root) ||
			links.UserOf(first.Credentials) == links.UserOf(other.Credentials) {
			t.Fatalf("%s and %s must be on one server, and have two users", shareVariable, shareVariable+second)
		}
		if found := first.mapped(t, false); found != "" {
			return found
		}
		h := windowsShares{}
		hint := h.MapShare(other.Root, other.Credentials, false)
		if linkstest.MappedRoot(t, h, other.Root) {
			defer h.UnmapShare(other.Root)
			return fmt.Sprintf("it is mapped, %v: one user for each share is enough", hint)
		}
		if !errors.Is(hint, links.CodeSessionConflict) {
			return fmt.Sprint("another error: ", hint)
		}
		return asAssumed
	}},
	{"shares", "a mapping that demands encryption says so", func(t *testing.T) string {
		s := checkedShare(t, "")
		if found := s.mapped(t, true); found != "" {
			return found + ": the server must support encryption of SMB 3"
		}
		if m, err := (windowsShares{}).Mapping(s.Root); err != nil || !m.Privacy {
			return fmt.Sprintf("%+v, %v", m, err)
		}
		return asAssumed
	}},
	{"shares", "data flows through a link to a share", func(t *testing.T) string {
		s := checkedShare(t, "")
		if found := s.mapped(t, false); found != "" {
			return found
		}
		link, name := s.Dir+`\link`, `\causeway-check`
		if err := (windowsLinks{}).Link(s.Root+`\`, link); err != nil {
			return err.Error()
		}
		if err := os.WriteFile(link+name, []byte("data"), 0o600); err != nil {
			return err.Error()
		}
		defer os.Remove(s.Root + name)
		if data, err := os.ReadFile(s.Root + name); err != nil || string(data) != "data" {
			return fmt.Sprintf("on the share: %q, %v", data, err)
		}
		return asAssumed
	}},
}
