package bundle

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// redacted takes the place of a secret.
const redacted = "REDACTED"

// secretWords mark the names of secrets: of environment variables, keys, flags and parameters. They
// count anywhere in a name.
const secretWords = `(?:password|passwd|passphrase|pass(?:[-_.0-9]|\b)|pwd|secret|token|credential|keytab|` +
	`authorization|(?:auths?|creds?|dsn)(?:[-_.0-9]|\b)|krb5cc|dockerconfigjson|dockercfg|bearer|cookie|signature|` +
	`connection[-_. ]?string|` +
	`(?:account|access|api|private|client|encryption|shared|signing|master|ssh|auth|user)[-_. ]?key)`

var secretWord = regexp.MustCompile(`(?i)` + secretWords)

// references are the parts of names whose values refer to a Secret, or are settings.
var references = regexp.MustCompile(`(?i)secret[-_]?(name(space)?|(key)?ref)s?$|automountServiceAccountToken$`)

// secretName reports whether the value of a name is a secret.
func secretName(name string) bool {
	return secretWord.MatchString(references.ReplaceAllString(name, ""))
}

// apiFields are fields of the API of Kubernetes with a secret word that hold no secret unless they
// are a string.
var apiFields = map[string]bool{"secret": true, "secrets": true, "imagePullSecrets": true, "serviceAccountToken": true,
	"tokenRequests": true}

// ampersand and equals delimit the name of a parameter in the query of a URL, as text, JSON and
// another URL have them.
const (
	ampersand = `(?:[?&;]|\\u0026|%26|%3f)`
	equals    = `(?:=|\\u003d|%3d)`
)

var (
	// signature matches the rest of a line after a signature in a URL of Azure.
	signature = regexp.MustCompile(`(?i)(` + ampersand + `sig` + equals + `).*`)
	// parameter matches a parameter in a URL, up to the end of a string.
	parameter = regexp.MustCompile(`(?i)(` + ampersand + `(?:sig|[\w.-]*` + secretWords + `[\w.-]*)` + equals +
		`)[^\s"']*`)
	urlUser = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://).*@`)
)

// privateKeys match the blocks of private keys, and everything before the end of a block whose
// begin is missing: a log is cut at its begin. patterns match secrets within a line. It is better
// to lose a harmless word than to keep a secret.
var (
	privateKeys = []*regexp.Regexp{
		regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?` +
			`(-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\z)`),
		regexp.MustCompile(`(?s)\A.*-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----`),
	}
	patterns = []struct {
		match *regexp.Regexp
		with  string
	}{
		{signature, "${1}" + redacted}, // before urlUser: it may have an @
		{urlUser, "${1}" + redacted + "@"},
		{regexp.MustCompile(`(?i)\b(bearer)\s.*`), "${1} " + redacted},
		{regexp.MustCompile(`(?i)\b(basic)\s+[A-Za-z0-9+/=._~-]{8,}`), "${1} " + redacted},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`), redacted}, // a JSON web token
	}
)

// A user and a password before a host, without a scheme. A digest of an image looks alike.
var (
	userInfo = regexp.MustCompile(`[\w.+%$~-]+:(?:[^/\s@]|/[^/\s])\S*@`)
	digest   = regexp.MustCompile(`@(sha(?:256|512):[0-9a-f]{32,})`)
	noDigest = regexp.MustCompile(`\x00(sha(?:256|512):[0-9a-f]{32,})`)
)

// users removes users with passwords from a line.
func users(line string) string {
	line = userInfo.ReplaceAllString(digest.ReplaceAllString(line, "\x00${1}"), redacted+"@")
	return noDigest.ReplaceAllString(line, "@${1}")
}

var (
	// assignment matches a secret word in a name, the rest of the name, and a separator; or a flag
	// with the word, whose value is the next word.
	assignment = regexp.MustCompile(`(?i)` + secretWords + `[\w.$/-]*(?:\[[^\]]*\]|[ \t]*\([^)]*\))?[\\"'` + "`" +
		`)\]}]*[ \t]*(?:=>|:=|[:=>]|%3[ad])|` +
		`(?:^|[\s"'` + "`" + `,=(\[])--?[\w.-]*?` + secretWords + `[\w.-]*(?:[\\"'` + "`" +
		`,\]]*[ \t]|[\\"'` + "`" + `,\]]*$)`)
	nameBefore = regexp.MustCompile(`[\w.$/-]*$`)
	nameIn     = regexp.MustCompile(`^[\s"'` + "`" + `,=(\[]*[\w.$/ -]*`)
	logTime    = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9:]+) `)
	// noValue matches the rest of a line whose value follows on the next one: a block scalar, a
	// tag, or punctuation.
	noValue = regexp.MustCompile(`^[\s\\"'` + "`" + `,|>\[\]{}()+0-9-]*(?:[&!]\S*\s*)*[|>+0-9-]*\s*(?:#.*)?$`)
)

// longest is the number of lines of a quoted or bracketed value. A quote that has no end must not
// remove the rest of a log.
const longest = 100

// value is a secret that may go on in the next lines.
type value struct {
	indent int    // of its name
	next   bool   // the next line belongs to it in any case
	list   bool   // items of a list belong to it, too
	end    string // "" or the text that ends it
	open   string // a bracket that end closes
	depth  int    // of brackets
	lines  int    // up to longest
}

// text removes secrets from a text. A secret is everything from its separator to the end of the
// line, the following lines with more indentation, and those up to the end of a quote or a bracket.
func text(s string) string {
	for _, p := range privateKeys {
		s = p.ReplaceAllString(s, redacted)
	}
	var kept []string
	var v *value
	for line := range strings.SplitSeq(s, "\n") {
		body := line[len(logTime.FindString(line)):]
		if v != nil && v.has(body) {
			continue
		}
		v = nil
		if at := secretAt(body); at >= 0 {
			v = newValue(body, at)
			line = line[:len(line)-len(body)+at]
			if strings.TrimSpace(body[at:]) != "" {
				line += body[at:len(body)-len(strings.TrimLeft(body[at:], " \t"))] + redacted
			}
		}
		for _, p := range patterns {
			line = p.match.ReplaceAllString(line, p.with)
		}
		kept = append(kept, users(line))
	}
	return strings.Join(kept, "\n")
}

// secretAt returns the index after the separator of the first secret of a line, or -1.
func secretAt(line string) int {
	if !secretWord.MatchString(line) {
		return -1
	}
	for from := 0; from < len(line); {
		m := assignment.FindStringIndex(line[from:])
		if m == nil {
			return -1
		}
		begin, end := from+m[0], from+m[1]
		name := nameBefore.FindString(line[:begin]) + strings.Trim(nameIn.FindString(line[begin:end]), " \t\"'`,=([")
		if secretName(name) {
			return end
		}
		from = end
	}
	return -1
}

// newValue returns the value that begins in a line at an index.
func newValue(line string, at int) *value {
	v := &value{indent: len(line) - len(strings.TrimLeft(line, " \t-")), lines: longest}
	rest := strings.TrimSpace(line[at:])
	v.list = noValue.MatchString(rest)
	v.next = v.list || strings.HasSuffix(rest, `\`)
	rest = strings.TrimLeft(rest, `\`)
	switch {
	case strings.HasSuffix(strings.TrimSpace(line[:at]), ">"):
		if !strings.Contains(rest, "</") {
			v.end = "</"
		}
	case strings.HasPrefix(rest, `"""`) || strings.HasPrefix(rest, "'''"):
		if strings.Count(rest, rest[:3]) < 2 {
			v.end = rest[:3]
		}
	case strings.HasPrefix(rest, `"`):
		if n := strings.Count(rest, `"`) - strings.Count(rest, `\"`); n%2 != 0 {
			v.end = `"`
		}
	case strings.HasPrefix(rest, "'") || strings.HasPrefix(rest, "`"):
		if strings.Count(rest, rest[:1])%2 != 0 {
			v.end = rest[:1]
		}
	case strings.HasPrefix(rest, "[") || strings.HasPrefix(rest, "{"):
		v.open, v.end = rest[:1], map[string]string{"[": "]", "{": "}"}[rest[:1]]
		if v.depth = strings.Count(rest, v.open) - strings.Count(rest, v.end); v.depth <= 0 {
			v.end = ""
		}
	}
	return v
}

// has reports whether the next line belongs to the value.
func (v *value) has(line string) bool {
	v.lines--
	trimmed := strings.TrimSpace(line)
	switch {
	case v.end != "" && v.lines >= 0:
		v.depth += strings.Count(line, v.open) - strings.Count(line, v.end)
		if v.open == "" && strings.Contains(line, v.end) || v.open != "" && v.depth <= 0 {
			v.end = ""
		}
		return true
	case trimmed == "":
		return true
	case v.next:
		v.next = false
		return true
	case v.list && strings.HasPrefix(trimmed, "-"):
		return true
	}
	return len(line)-len(strings.TrimLeft(line, " \t")) > v.indent
}

// jsonText removes secrets from a JSON text, by the names in it.
func jsonText(s string) string {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() || !structured(v) {
		return text(s)
	}
	out, err := json.MarshalIndent(values(v, false), "", "  ")
	if err != nil {
		return text(s)
	}
	return string(out) + "\n"
}

var documents = regexp.MustCompile(`(?m)^---[ \t]*$\n?`)

// file removes secrets from a file in a ConfigMap: by the names in it if it is YAML or JSON.
func file(s string) string {
	var out [][]byte
	// YAML would take a part of a URL for a name. The rest of a value goes with its line at the
	// end.
	s = urlUser.ReplaceAllString(parameter.ReplaceAllString(s, "${1}"+redacted), "${1}"+redacted+"@")
	for _, doc := range documents.Split(s, -1) {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var v any
		if yaml.Unmarshal([]byte(doc), &v) != nil || !structured(v) {
			return text(s)
		}
		data, err := yaml.Marshal(values(v, false))
		if err != nil {
			return text(s)
		}
		out = append(out, data)
	}
	if len(out) == 0 {
		return text(s)
	}
	return text(string(bytes.Join(out, []byte("---\n"))))
}

func structured(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// names returns the kind and the names of an object.
func names(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	return map[string]any{"apiVersion": o["apiVersion"], "kind": o["kind"], "metadata": map[string]any{
		"name": m["name"], "namespace": m["namespace"]}}
}

// configMap removes the values of a ConfigMap, and keeps those of files of this project: others in
// the namespace belong to other applications, and Helm may keep the values of a release there.
func configMap(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	labels, _ := m["labels"].(map[string]any)
	if labels["owner"] == "helm" || labels["app.kubernetes.io/part-of"] != "causeway" {
		return names(o)
	}
	delete(o, "binaryData")
	data, _ := o["data"].(map[string]any)
	for name, content := range data {
		if s, ok := content.(string); ok && !secretName(name) {
			data[name] = file(s)
		}
	}
	return o
}

// object removes secrets from an object, in place, and the managed fields, which take space
// without a use. The annotation last-applied repeats the object as it was before the redaction.
func object(o map[string]any) map[string]any {
	if m, ok := o["metadata"].(map[string]any); ok {
		delete(m, "managedFields")
		if a, ok := m["annotations"].(map[string]any); ok {
			delete(a, corev1.LastAppliedConfigAnnotation)
		}
	}
	if o["kind"] == "ConfigMap" {
		o = configMap(o)
	}
	return values(o, true).(map[string]any)
}

// values removes secrets from a value, by its names and in all strings. api reports whether it is
// an object of the API, whose fields are known.
func values(v any, api bool) any {
	switch v := v.(type) {
	case map[string]any:
		for _, field := range []string{"name", "key"} { // of an environment variable, or of a parameter
			if name, ok := v[field].(string); ok && secretName(name) {
				for _, field := range []string{"value", "values", "default"} {
					if v[field] != nil {
						v[field] = redacted
					}
				}
			}
		}
		for k, one := range v {
			_, isString := one.(string)
			if secretName(k) && one != nil && one != "" && (!api || !apiFields[k] || isString) {
				v[k] = redacted
				continue
			}
			v[k] = values(one, api)
		}
		return v
	case []any:
		before := ""
		for i, one := range v {
			s, ok := one.(string)
			// A flag and its value may be two arguments.
			if ok && strings.HasPrefix(before, "-") && !strings.Contains(before, "=") && secretName(before) {
				v[i] = redacted
			} else {
				v[i] = values(one, api)
			}
			before = s
		}
		return v
	case string:
		return text(v)
	}
	return v
}
