package archive

import (
	"fmt"
	"strings"
)

// canonical returns the path of an entry of a stream: relative, with slashes, without a leading
// "./" and a trailing slash. "" is the directory into which the stream is unpacked. Errors:
// ErrRefused.
func canonical(name string) (string, error) {
	path := name
	for strings.HasPrefix(path, "./") {
		path = path[2:]
	}
	path = strings.TrimSuffix(path, "/")
	if path == "" && name != "" && name[0] != '/' || path == "." {
		return "", nil
	}
	for element := range strings.SplitSeq(path, "/") {
		if err := checkElement(element); err != nil {
			return "", fmt.Errorf("the name %.128q: %w", name, err)
		}
	}
	return path, nil
}

// checkElement returns ErrRefused for an element of a path that is no name of a file on this
// system.
func checkElement(element string) error {
	switch {
	case element == "" || element == "." || element == "..":
		return fmt.Errorf("%w: %q is an element of it", ErrRefused, element)
	case strings.ContainsAny(element, "/\x00"):
		return fmt.Errorf("%w: %.128q has a slash or NUL", ErrRefused, element)
	}
	return checkLocal(element)
}

// reserved are the names of devices of Windows, in each directory and with each extension.
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file
var reserved = map[string]bool{"CON": true, "PRN": true, "AUX": true, "NUL": true, "CONIN$": true, "CONOUT$": true}

// checkWindows returns ErrRefused for a name that Windows cannot have, or takes for another: a
// stream, a device, or the name without its last dots and spaces.
func checkWindows(element string) error {
	for _, r := range element {
		if r < ' ' || strings.ContainsRune(`<>:"/\|?*`, r) {
			return fmt.Errorf("%w: %.128q has %q, which Windows does not permit", ErrRefused, element, r)
		}
	}
	if last := element[len(element)-1]; last == '.' || last == ' ' {
		return fmt.Errorf("%w: %.128q ends with %q, which Windows drops", ErrRefused, element, last)
	}
	base, _, _ := strings.Cut(element, ".")
	base = strings.ToUpper(strings.TrimRight(base, " "))
	if reserved[base] || isPort(base) {
		return fmt.Errorf("%w: %.128q is a device on Windows", ErrRefused, element)
	}
	return nil
}

// isPort reports whether a name is COM or LPT with a digit, or with one of three superscript
// digits.
func isPort(base string) bool {
	number, isCOM := strings.CutPrefix(base, "COM")
	if !isCOM {
		var isLPT bool
		if number, isLPT = strings.CutPrefix(base, "LPT"); !isLPT {
			return false
		}
	}
	switch number {
	case "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³":
		return true
	}
	return false
}

// leadsOut reports whether the text of a link at a path may lead out of the copy, which is the
// first element of the path: the text is absolute, or has too many "..". A ".." behind a name is one
// too many: the name can be that of another link. On Windows a colon or a backslash of the text may
// lead out, too. windows reports whether this is Windows.
func leadsOut(path, text string, windows bool) bool {
	if text == "" || text[0] == '/' || strings.Contains(text, "\x00") || windows && strings.ContainsAny(text, `\:`) {
		return true
	}
	above := strings.Count(path, "/") - 1 // directories above that of the link, in the copy
	named := false
	for element := range strings.SplitSeq(text, "/") {
		switch element {
		case "", ".":
		case "..":
			above--
			if named {
				return true
			}
		default:
			named = true
		}
	}
	return above < 0
}
