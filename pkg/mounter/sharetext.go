package mounter

import (
	"fmt"
	"strings"
)

// Text forms of a share on Windows. The source of a link is \\server\share\directory\, with a
// backslash at the end: containerd#5405. The key of a mapping is its root, \\server\share. Servers
// and shares are in lower case, because their names do not depend on case. A server may distinguish
// the case of directories.

// linkText returns the text of a link to a Share, from its source as ParseShare has it. Errors:
// ErrPath.
func linkText(source string) (string, error) {
	s, err := ParseShare(source)
	if err != nil {
		return "", err
	}
	if s.Port != 0 && s.Port != SMBPort {
		return "", fmt.Errorf("%w: invalid share %.128q: Windows connects to port %d only: remove the port", ErrPath,
			source, SMBPort)
	}
	server := s.Server
	if strings.Contains(server, ":") { // [MS-UNC] has no brackets
		server = strings.ReplaceAll(server, ":", "-") + ".ipv6-literal.net"
	}
	text := `\\` + server + `\` + s.Share + `\`
	if s.Path != "" {
		text += strings.ReplaceAll(s.Path, "/", `\`) + `\`
	}
	text, _, ok := parseUNC(text)
	if !ok {
		return "", fmt.Errorf("%w: invalid share %.128q: Windows reads a name in it as another name", ErrPath, source)
	}
	return text, nil
}

// parseUNC returns a text of linkText in its one form, and its root.
func parseUNC(text string) (clean, root string, ok bool) {
	rest, isUNC := strings.CutPrefix(text, `\\`)
	rest, isEnded := strings.CutSuffix(rest, `\`)
	names := strings.Split(rest, `\`)
	if !isUNC || !isEnded || len(names) < 2 {
		return "", "", false
	}
	server, share := strings.ToLower(names[0]), strings.ToLower(names[1])
	if len(server) > maxHostname || !hostname.MatchString(server) || CheckShareName(share) != nil {
		return "", "", false
	}
	for _, name := range names[2:] {
		if CheckShareName(name) != nil || checkWindowsName(name) != nil {
			return "", "", false
		}
	}
	root = `\\` + server + `\` + share
	return strings.Join(append([]string{root}, names[2:]...), `\`) + `\`, root, true
}

// rootOf returns the root of the share with a source of a link, and whether it is on a share.
func rootOf(source string) (root string, isShare bool) {
	_, root, isShare = parseUNC(source)
	return root, isShare
}

// rootServer returns the server of a root.
func rootServer(root string) string {
	server, _, _ := strings.Cut(strings.TrimPrefix(root, `\\`), `\`)
	return server
}

// sourceKey is equal for two sources of the same directory.
func sourceKey(form pathForm, source string) string {
	if text, _, isShare := parseUNC(source); isShare {
		return text
	}
	return form.key(source)
}

// userOf returns the user of credentials in one form.
func userOf(c Credentials) string {
	user := c.Username
	if c.Domain != "" {
		user = c.Domain + `\` + user
	}
	return strings.ToLower(user)
}
