// Package safe makes text from nodes, tenants and servers safe for a terminal.
package safe

import (
	"cmp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns a text, in quotes if a terminal may not show it as it is.
func Text(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.QuoteToASCII(text)
	}
	return text
}

// Cell returns a text for a table: quoted if it has a space, and - for "".
func Cell(text string) string {
	if strings.Contains(text, " ") {
		return strconv.QuoteToASCII(text)
	}
	return cmp.Or(Text(text), "-")
}
