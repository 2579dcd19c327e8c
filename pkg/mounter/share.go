package mounter

import (
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// Credentials are those of a Share. They print as *** in every format, so that no log, error or
// record contains them. The zero value has none: the options then select guest access or Kerberos.
type Credentials struct {
	Username string
	Domain   string
	Password string
}

// hidden is the text of Credentials.
const hidden = "***"

// Format prints *** for every verb.
func (Credentials) Format(s fmt.State, _ rune) { io.WriteString(s, hidden) }

// String returns ***.
func (Credentials) String() string { return hidden }

// GoString returns ***.
func (Credentials) GoString() string { return hidden }

// MarshalText returns ***, so that no encoding and no log contains credentials.
func (Credentials) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Check returns ErrOption for a value that an SMB server cannot have. The error does not show the
// value.
func (c Credentials) Check() error {
	for name, value := range map[string]string{"username": c.Username, "domain": c.Domain, "password": c.Password} {
		if len(value) > maxCredential || strings.ContainsAny(value, "\x00\n\r") || !utf8.ValidString(value) {
			return fmt.Errorf("%w: the %s must be UTF-8 without NUL and line breaks, at most %d bytes", ErrOption, name,
				maxCredential)
		}
	}
	return nil
}

// maxCredential is the maximum length of a user name or password in bytes: fsconfig(2) takes
// strings of at most 256 bytes with the terminating NUL.
const maxCredential = 255

// ShareSource is the parsed source of a Share.
type ShareSource struct {
	Server string // host name or address, in lower case
	Port   int    // 0: the port of SMB, 445
	Share  string // name of the share
	Path   string // path of a directory on the share, with slashes; "": the root of the share
}

// SMBPort is the port of SMB over TCP.
const SMBPort = 445

const (
	maxShareName   = 80   // bytes; [MS-SMB2] 2.2.9
	maxShareSource = 1024 // bytes of a source
)

// Hostname matches the names of hosts: RFC 1123.
var Hostname = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// ParseShare parses //server[:port]/share[/directory…]. An IPv6 address is in brackets. No element
// is ".", ".." or empty, or has a character that Windows forbids in names. Errors: ErrPath.
func ParseShare(source string) (ShareSource, error) {
	fail := func(rule string) (ShareSource, error) {
		return ShareSource{}, fmt.Errorf("%w: invalid share %.128q: %s", ErrPath, source, rule)
	}
	rest, ok := strings.CutPrefix(source, "//")
	if !ok || len(source) > maxShareSource {
		return fail("must be //server[:port]/share[/directory], at most " + strconv.Itoa(maxShareSource) + " bytes")
	}
	elements := strings.Split(rest, "/")
	s := ShareSource{}
	var err error
	if s.Server, s.Port, err = parseServer(elements[0]); err != nil {
		return fail(err.Error())
	}
	if len(elements) < 2 || elements[1] == "" {
		return fail("the name of the share is missing")
	}
	if elements[len(elements)-1] == "" {
		return fail("it ends with a slash: remove the slash")
	}
	for _, e := range elements[1:] {
		if err := CheckShareName(e); err != nil {
			return fail(err.Error())
		}
	}
	s.Share, s.Path = elements[1], strings.Join(elements[2:], "/")
	if len(s.Share) > maxShareName {
		return fail(fmt.Sprintf("the name of the share has %d bytes, must have at most %d", len(s.Share), maxShareName))
	}
	return s, nil
}

// parseServer parses a server with an optional port.
func parseServer(text string) (server string, port int, err error) {
	server = strings.ToLower(text)
	if i := strings.LastIndexByte(server, ':'); i >= 0 && !strings.HasSuffix(server, "]") {
		n, err := strconv.ParseUint(server[i+1:], 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("invalid port %.8q", server[i+1:])
		}
		server, port = server[:i], int(n)
	}
	if address, bracketed := strings.CutPrefix(server, "["); bracketed {
		ip, err := netip.ParseAddr(strings.TrimSuffix(address, "]"))
		if err != nil || !ip.Is6() || ip.Zone() != "" || !strings.HasSuffix(address, "]") {
			return "", 0, fmt.Errorf("invalid IPv6 address %.48q", server)
		}
		return ip.String(), port, nil
	}
	if len(server) > MaxHostname || !Hostname.MatchString(server) {
		return "", 0, fmt.Errorf("invalid server %.128q", server)
	}
	return server, port, nil
}

// MaxHostname is the maximum length of the name of a host: RFC 1035.
const MaxHostname = 253

// CheckShareName returns an error for a name that no file or directory on a share may have: empty,
// "." or "..", with a character that Windows forbids, with a space or dot at its end, or of more
// than 255 bytes. Source: Microsoft, "Naming Files, Paths, and Namespaces".
func CheckShareName(name string) error {
	switch {
	case name == "", name == ".", name == "..":
		return fmt.Errorf("%q is not a name", name)
	case len(name) > paths.MaxName:
		return fmt.Errorf("%.32q… has %d bytes, must have at most %d", name, len(name), paths.MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%.64q is not UTF-8", name)
	case strings.HasSuffix(name, ".") || strings.HasSuffix(name, " "):
		return fmt.Errorf("%.64q ends with a dot or a space", name)
	}
	for _, c := range name {
		if c < ' ' || c == 0x7f || strings.ContainsRune(`/\:*?"<>|`, c) {
			return fmt.Errorf("%.64q has the character %q", name, c)
		}
	}
	return nil
}

// String returns the source in the form of ParseShare.
func (s ShareSource) String() string {
	text := "//" + s.host()
	if s.Port != 0 {
		text += ":" + strconv.Itoa(s.Port)
	}
	return text + strings.TrimPrefix(s.UNC(), "//"+s.host())
}

// host returns the server, with brackets around an IPv6 address.
func (s ShareSource) host() string {
	if strings.Contains(s.Server, ":") {
		return "[" + s.Server + "]"
	}
	return s.Server
}

// UNC returns the source without the port.
func (s ShareSource) UNC() string {
	text := "//" + s.host() + "/" + s.Share
	if s.Path != "" {
		text += "/" + s.Path
	}
	return text
}

// Same reports whether both are the same directory of a server. The names of servers and shares do
// not depend on case; those of directories are compared exactly. A port is not compared, as the
// kernel does not show it in the source of a mount.
func (s ShareSource) Same(other ShareSource) bool {
	return s.Server == other.Server && strings.EqualFold(s.Share, other.Share) && s.Path == other.Path
}
