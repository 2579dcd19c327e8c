// Package logsafe makes JSON logs safe to show. A log holds text of other programs, such as names
// and errors. A JSON encoder leaves characters in it that a terminal obeys or that hide the
// following text: C1 controls, marks of the writing direction, line separators.
package logsafe

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON returns a writer that passes JSON on to w, and writes every character that is not printable
// as \uXXXX, which means the same. These are the characters for which slog's text format quotes a
// string, too. One Write holds whole characters, as that of a slog.JSONHandler.
func JSON(w io.Writer) io.Writer { return escaper{w} }

type escaper struct{ to io.Writer }

// Write is io.Writer's. Write returns len(p) unless the writer below fails.
func (e escaper) Write(p []byte) (int, error) {
	if isPlain(p) {
		return e.to.Write(p)
	}
	out := make([]byte, 0, len(p)+64)
	for i := 0; i < len(p); {
		r, size := utf8.DecodeRune(p[i:])
		switch {
		case p[i] == '\n' || r != utf8.RuneError && unicode.IsPrint(r):
			out = append(out, p[i:i+size]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += size
	}
	if _, err := e.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// isPlain reports whether p has only printable ASCII and line feeds.
func isPlain(p []byte) bool {
	for _, b := range p {
		if (b < ' ' && b != '\n') || b >= 0x7f {
			return false
		}
	}
	return true
}
