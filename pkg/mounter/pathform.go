package mounter

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// pathForm is the syntax of the paths of an operating system. Code that must run on any system,
// such as links, uses it instead of path/filepath, which knows only the syntax of its own system.
type pathForm struct {
	separator string
	// clean brings an absolute path into the form in which paths are compared, and are the keys of
	// locks. Errors: ErrPath.
	clean func(path string) (string, error)
	// key is equal for two clean paths of the same file.
	key func(path string) string
}

// unixPaths are paths with slashes. A path that is not clean is ErrPath.
var unixPaths = pathForm{separator: "/", key: func(p string) string { return p }, clean: cleanUnix}

func cleanUnix(p string) (string, error) {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.IndexByte(p, 0) >= 0 {
		return "", fmt.Errorf("%w: %.128q is not absolute and clean", ErrPath, p)
	}
	if len(p) > paths.MaxPath || slices.ContainsFunc(strings.Split(p, "/"), func(n string) bool { return len(n) > paths.MaxName }) {
		return "", fmt.Errorf("%w: %.64q… is too long", ErrPath, p)
	}
	return p, nil
}

// windowsPaths are the paths of local drives on Windows. NTFS compares names without regard to
// case.
var windowsPaths = pathForm{separator: `\`, key: strings.ToLower, clean: cleanWindows}

// join returns the path of an entry below dir.
func (f pathForm) join(dir string, names ...string) string {
	return strings.TrimSuffix(dir, f.separator) + f.separator + strings.Join(names, f.separator)
}

// dir returns the parent of a clean path.
func (f pathForm) dir(path string) string {
	i := strings.LastIndex(path, f.separator)
	if i == strings.Index(path, f.separator) { // the root of the system or of a drive
		i += len(f.separator)
	}
	return path[:i]
}

// elements returns the elements of path below dir, or false if it is not strictly below. Both are
// clean.
func (f pathForm) elements(dir, path string) ([]string, bool) {
	prefix := f.join(dir, "")
	if len(path) <= len(prefix) || f.key(path[:len(prefix)]) != f.key(prefix) {
		return nil, false
	}
	return strings.Split(path[len(prefix):], f.separator), true
}

// isWithin reports whether path is dir, or below dir. Both are clean.
func (f pathForm) isWithin(dir, path string) bool {
	_, below := f.elements(dir, path)
	return below || f.key(dir) == f.key(path)
}

// windowsForbidden are characters that no name of a file on Windows has. A colon separates a file
// from one of its alternate data streams.
const windowsForbidden = `<>:"|?*`

// windowsDevices are names of devices: a path whose element has such a name, with or without an
// extension, leads to the device.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
var windowsDevices = []string{"con", "prn", "aux", "nul", "conin$", "conout$"}

// windowsPorts are the numbers of the devices COM and LPT.
const windowsPorts = "0123456789¹²³"

// cleanWindows returns the one form of an absolute path of a local drive: backslashes, an
// upper-case drive letter, no empty element and no "." between. A path without a drive is on C:, as
// the kubelet means it: it sends the staging path as \var\lib\kubelet\…. Errors: ErrPath for a
// relative path, a UNC or device path (\\…), "..", and names that Windows reads as other names.
func cleanWindows(path string) (string, error) {
	if !utf8.ValidString(path) || len(path) > paths.MaxPath {
		return "", fmt.Errorf("%w: a path is valid UTF-8 of at most %d bytes", ErrPath, paths.MaxPath)
	}
	path = strings.ReplaceAll(path, "/", `\`)
	switch {
	case strings.HasPrefix(path, `\\`):
		return "", fmt.Errorf("%w: %.128q is a network or device path: must be on a drive", ErrPath, path)
	case strings.HasPrefix(path, `\`):
		path = "C:" + path
	case len(path) < 3 || path[1:3] != `:\` || !isLetter(path[0]):
		return "", fmt.Errorf(`%w: %.128q is not absolute: must begin with a drive and a backslash, as C:\ does`,
			ErrPath, path)
	}
	drive := strings.ToUpper(path[:1]) + `:\`
	var names []string
	for name := range strings.SplitSeq(path[3:], `\`) {
		if name == "" || name == "." {
			continue
		}
		if err := checkWindowsName(name); err != nil {
			return "", err
		}
		names = append(names, name)
	}
	return drive + strings.Join(names, `\`), nil
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// checkWindowsName returns ErrPath for a name that no file on Windows has, or that Windows reads as
// another name.
func checkWindowsName(name string) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || strings.ContainsRune(windowsForbidden, r) }) {
		return fmt.Errorf("%w: invalid name %.64q: must not have a control character or one of %s", ErrPath, name,
			windowsForbidden)
	}
	if strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") { // "..", too
		return fmt.Errorf("%w: invalid name %.64q: must not end with a dot or a space, which Windows cuts off", ErrPath,
			name)
	}
	if n := len(utf16.Encode([]rune(name))); n > paths.MaxName {
		return fmt.Errorf("%w: invalid name %.64q…: must have at most %d UTF-16 code units, has %d", ErrPath, name,
			paths.MaxName, n)
	}
	base, _, _ := strings.Cut(strings.ToLower(name), ".")
	base = strings.TrimRight(base, " ")
	port, isPort := strings.CutPrefix(base, "com")
	if !isPort {
		port, isPort = strings.CutPrefix(base, "lpt")
	}
	number, size := utf8.DecodeRuneInString(port)
	isPort = isPort && size == len(port) && strings.ContainsRune(windowsPorts, number)
	if isPort || slices.Contains(windowsDevices, base) {
		return fmt.Errorf("%w: invalid name %.64q: the name of a device", ErrPath, name)
	}
	return nil
}
