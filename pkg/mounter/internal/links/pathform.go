package links

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/paths"
)

// PathForm is the syntax of the paths of an operating system. Code that must run on any system,
// such as links, uses it instead of path/filepath, which knows only the syntax of its own system.
type PathForm struct {
	Separator string
	// Clean brings an absolute path into the form in which paths are compared, and are the keys of
	// locks. Errors: ErrPath.
	Clean func(path string) (string, error)
	// Key is equal for two clean paths of the same file.
	Key func(path string) string
}

// UnixPaths are paths with slashes. A path that is not clean is ErrPath.
var UnixPaths = PathForm{Separator: "/", Key: func(p string) string { return p }, Clean: cleanUnix}

func cleanUnix(p string) (string, error) {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.IndexByte(p, 0) >= 0 {
		return "", fmt.Errorf("%w: %.128q is not absolute and clean", mounter.ErrPath, p)
	}
	if len(p) > paths.MaxPath || slices.ContainsFunc(strings.Split(p, "/"),
		func(n string) bool { return len(n) > paths.MaxName }) {
		return "", fmt.Errorf("%w: %.64q… is too long", mounter.ErrPath, p)
	}
	return p, nil
}

// WindowsPaths are the paths of local drives on Windows. NTFS compares names without regard to
// case.
var WindowsPaths = PathForm{Separator: `\`, Key: strings.ToLower, Clean: CleanWindows}

// Join returns the path of an entry below dir.
func (f PathForm) Join(dir string, names ...string) string {
	return strings.TrimSuffix(dir, f.Separator) + f.Separator + strings.Join(names, f.Separator)
}

// dir returns the parent of a clean path.
func (f PathForm) dir(path string) string {
	i := strings.LastIndex(path, f.Separator)
	if i == strings.Index(path, f.Separator) { // the root of the system or of a drive
		i += len(f.Separator)
	}
	return path[:i]
}

// elements returns the elements of path below dir, or false if it is not strictly below. Both are
// clean.
func (f PathForm) elements(dir, path string) ([]string, bool) {
	prefix := f.Join(dir, "")
	if len(path) <= len(prefix) || f.Key(path[:len(prefix)]) != f.Key(prefix) {
		return nil, false
	}
	return strings.Split(path[len(prefix):], f.Separator), true
}

// isWithin reports whether path is dir, or below dir. Both are clean.
func (f PathForm) isWithin(dir, path string) bool {
	_, below := f.elements(dir, path)
	return below || f.Key(dir) == f.Key(path)
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

// CleanWindows returns the one form of an absolute path of a local drive: backslashes, an
// upper-case drive letter, no empty element and no "." between. A path without a drive is on C:, as
// the kubelet means it: it sends the staging path as \var\lib\kubelet\…. Errors: ErrPath for a
// relative path, a UNC or device path (\\…), "..", and names that Windows reads as other names.
func CleanWindows(path string) (string, error) {
	if !utf8.ValidString(path) || len(path) > paths.MaxPath {
		return "", fmt.Errorf("%w: a path is valid UTF-8 of at most %d bytes", mounter.ErrPath, paths.MaxPath)
	}
	path = strings.ReplaceAll(path, "/", `\`)
	switch {
	case strings.HasPrefix(path, `\\`):
		return "", fmt.Errorf("%w: %.128q is a network or device path: must be on a drive", mounter.ErrPath, path)
	case strings.HasPrefix(path, `\`):
		path = "C:" + path
	case len(path) < 3 || path[1:3] != `:\` || !isLetter(path[0]):
		return "", fmt.Errorf(`%w: %.128q is not absolute: must begin with a drive and a backslash, as C:\ does`,
			mounter.ErrPath, path)
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
		return fmt.Errorf("%w: invalid name %.64q: must not have a control character or one of %s", mounter.ErrPath, name,
			windowsForbidden)
	}
	if strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") { // "..", too
		return fmt.Errorf("%w: invalid name %.64q: must not end with a dot or a space, which Windows cuts off",
			mounter.ErrPath,
			name)
	}
	if n := len(utf16.Encode([]rune(name))); n > paths.MaxName {
		return fmt.Errorf("%w: invalid name %.64q…: must have at most %d UTF-16 code units, has %d", mounter.ErrPath, name,
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
		return fmt.Errorf("%w: invalid name %.64q: the name of a device", mounter.ErrPath, name)
	}
	return nil
}
