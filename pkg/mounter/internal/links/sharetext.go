package links

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Text forms of a share on Windows. The source of a link is \\server\share\directory\, with a
// backslash at the end: containerd#5405. The key of a mapping is its root, \\server\share. Servers
// and shares are in lower case, because their names do not depend on case. A server may distinguish
// the case of directories.

// LinkText returns the text of a link to a Share, from its source as ParseShare has it. Errors:
// ErrPath.
func LinkText(source string) (string, error) {
	s, err := mounter.ParseShare(source)
	if err != nil {
		return "", err
	}
	if s.Port != 0 && s.Port != mounter.SMBPort {
		return "", fmt.Errorf("%w: invalid share %.128q: Windows connects to port %d only: remove the port", mounter.ErrPath,
			source, mounter.SMBPort)
	}
	server := s.Server
	if strings.Contains(server, ":") { // [MS-UNC] has no brackets
		server = strings.ReplaceAll(server, ":", "-") + ".ipv6-literal.net"
	}
	text := `\\` + server + `\` + s.Share + `\`
	if s.Path != "" {
		text += strings.ReplaceAll(s.Path, "/", `\`) + `\`
	}
	text, _, ok := ParseUNC(text)
	if !ok {
		return "", fmt.Errorf("%w: invalid share %.128q: Windows reads a name in it as another name", mounter.ErrPath, source)
	}
	return text, nil
}

// ParseUNC returns a text of LinkText in its one form, and its root.
func ParseUNC(text string) (clean, root string, ok bool) {
	rest, isUNC := strings.CutPrefix(text, `\\`)
	rest, isEnded := strings.CutSuffix(rest, `\`)
	names := strings.Split(rest, `\`)
	if !isUNC || !isEnded || len(names) < 2 {
		return "", "", false
	}
	server, share := strings.ToLower(names[0]), strings.ToLower(names[1])
	if len(server) > mounter.MaxHostname || !mounter.Hostname.MatchString(server) || mounter.CheckShareName(share) != nil {
		return "", "", false
	}
	for _, name := range names[2:] {
		if mounter.CheckShareName(name) != nil || checkWindowsName(name) != nil {
			return "", "", false
		}
	}
	root = `\\` + server + `\` + share
	return strings.Join(append([]string{root}, names[2:]...), `\`) + `\`, root, true
}

// RootOf returns the root of the share with a source of a link, and whether it is on a share.
func RootOf(source string) (root string, isShare bool) {
	_, root, isShare = ParseUNC(source)
	return root, isShare
}

// RootServer returns the server of a root.
func RootServer(root string) string {
	server, _, _ := strings.Cut(strings.TrimPrefix(root, `\\`), `\`)
	return server
}

// sourceKey is equal for two sources of the same directory.
func sourceKey(form PathForm, source string) string {
	if text, _, isShare := ParseUNC(source); isShare {
		return text
	}
	return form.Key(source)
}

// UserOf returns the user of credentials in one form.
func UserOf(c mounter.Credentials) string {
	user := c.Username
	if c.Domain != "" {
		user = c.Domain + `\` + user
	}
	return strings.ToLower(user)
}
