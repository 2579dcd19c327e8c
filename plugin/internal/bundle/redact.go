package bundle

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// redacted takes the place of a secret.
const redacted = "REDACTED"

// secretWords end the names of environment variables, keys and flags whose values are secrets.
const secretWords = `(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|(?:api|access|private|secret)[-_]?key)`

var secretName = regexp.MustCompile(`(?i)` + secretWords + `$`)

// patterns find secrets in text: in logs, arguments and the values of ConfigMaps. It is better to
// lose a harmless word than to keep a secret.
var patterns = []struct {
	match *regexp.Regexp
	with  string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`), redacted},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}`), "$1 " + redacted},
	{regexp.MustCompile(`(?i)(authorization["']?\s*[:=]\s*["']?)[^\s"']+([ \t]+[^\s"']+)?`), "${1}" + redacted},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`), redacted}, // a JSON web token
	{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@"']*:)[^\s@"']+@`), "${1}" + redacted + "@"},
	{regexp.MustCompile(`(?i)(` + secretWords + `\\?["']?[ \t]*[:=][ \t]*)` +
		`(\\"[^"\\]*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;{}\["'&]+)`),
		"${1}" + redacted},
}

// text removes secrets from a text.
func text(s string) string {
	for _, p := range patterns {
		s = p.match.ReplaceAllString(s, p.with)
	}
	return s
}

// object removes secrets from an object, in place, and what takes space without a use: managed
// fields. The annotation last-applied repeats the object as it was before the redaction.
func object(o map[string]any) map[string]any {
	if m, ok := o["metadata"].(map[string]any); ok {
		delete(m, "managedFields")
		if a, ok := m["annotations"].(map[string]any); ok {
			delete(a, corev1.LastAppliedConfigAnnotation)
		}
	}
	return values(o).(map[string]any)
}

// values removes secrets from all strings of a value.
func values(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["name"].(string); ok && secretName.MatchString(name) {
			if _, ok := v["value"].(string); ok { // an environment variable
				v["value"] = redacted
			}
		}
		for k, one := range v {
			if s, ok := one.(string); ok && secretName.MatchString(k) && s != "" {
				v[k] = redacted
				continue
			}
			v[k] = values(one)
		}
		return v
	case []any:
		for i, one := range v {
			if s, ok := one.(string); ok && i > 0 {
				// A flag and its value may be two arguments.
				if flag, ok := v[i-1].(string); ok && strings.HasPrefix(flag, "-") && !strings.Contains(flag, "=") &&
					secretName.MatchString(flag) {
					v[i] = redacted
					continue
				}
				v[i] = text(s)
				continue
			}
			v[i] = values(one)
		}
		return v
	case string:
		return text(v)
	}
	return v
}
