package live

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted  = regexp.MustCompile("`([^`]+)`")
	upper   = regexp.MustCompile(`\b[A-Z]{4,}(?:_[A-Z]+)*\b`)
	pattern = strings.NewReplacer("…", ".*", "none of the N nodes", `none of the \d+ nodes`)
)

// texts returns the codes and the quoted texts of a row. A message has one code and one text of
// them. In a text "…" is any text. A list without elements demands nothing.
func texts(row string) (codes, messages []*regexp.Regexp) {
	_, cell, _ := strings.Cut(row, ": ")
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		messages = append(messages, regexp.MustCompile(pattern.Replace(regexp.QuoteMeta(m[1]))))
	}
	for _, code := range upper.FindAllString(quoted.ReplaceAllString(cell, ""), -1) {
		name := strings.ReplaceAll(strings.ToLower(code), "_", "") // FAILED_PRECONDITION is FailedPrecondition
		codes = append(codes, regexp.MustCompile(`(?i)\bcode = `+name+`\b`))
	}
	return codes, messages
}

// proves reports whether a finding of the fault has the message of a row as evidence. The name of a
// condition may also be in the remedy.
func (f fault) proves(r report, row string) bool {
	codes, messages := texts(row)
	if strings.HasPrefix(row, "A pod does not end: ") {
		messages = nil // the kubelet has them in its log only
	}
	return slices.ContainsFunc(r.Findings, func(found finding) bool {
		text := found.Cause + "\n" + found.Evidence
		if strings.HasPrefix(row, "Conditions of ") {
			text += "\n" + found.Remedy
		}
		in := func(e *regexp.Regexp) bool { return e.MatchString(text) }
		return slices.ContainsFunc(f.named, is(found)) && (len(codes) == 0 || slices.ContainsFunc(codes, in)) &&
			(len(messages) == 0 || slices.ContainsFunc(messages, in))
	})
}

// TestARowNeedsItsMessage: a finding with the right cause and another message is no evidence for a
// row.
func TestARowNeedsItsMessage(t *testing.T) {
	const row = "A pod does not start: UNAVAILABLE, `write the staging record in …`, `x`"
	f := fault{named: []want{{check: "pods"}}}
	for evidence, want := range map[string]bool{
		"rpc error: code = Unavailable desc = write the staging record in /a: disk": true,
		"rpc error: code = Unavailable desc = x":                                    true,
		"rpc error: code = Internal desc = write the staging record in /a":          false,
		"rpc error: code = Unavailable desc = another":                              false,
		"": false,
	} {
		r := report{Findings: []finding{{Check: "pods", Evidence: evidence}}}
		if got := f.proves(r, row); got != want {
			t.Errorf("%q is evidence: %v, want %v", evidence, got, want)
		}
		r.Findings[0].Check = "claims"
		if f.proves(r, row) {
			t.Errorf("%q of another check is evidence", evidence)
		}
	}
}

// TestAnObjectHasItsWholeName: the finding of another fault does not count.
func TestAnObjectHasItsWholeName(t *testing.T) {
	for _, tc := range []struct {
		object, part string
		want         bool
	}{
		{"PersistentVolumeClaim/default/torn", "PersistentVolumeClaim/default/torn", true},
		{"PersistentVolumeClaim/default/torn-too", "PersistentVolumeClaim/default/torn", false},
		{"Pod/causeway-node-x on node-1", "on node-1", true},
		{"Pod/causeway-node-x on node-12", "on node-1", false},
		{"Pod/causeway-node-x on node-1", "on node-", true},
		{"Pod/causeway-controller-x/sidecars on node-1", "Pod/causeway-controller-", true},
		{"share //server/share", "share //", true},
		{"Deployment/causeway-controller", "causeway-controller", true},
		{"anything", "", true},
		{"Pod/default/inline", "Pod/default/other", false},
	} {
		if got := names(tc.object, tc.part); got != tc.want {
			t.Errorf("names(%q, %q) = %v", tc.object, tc.part, got)
		}
	}
}
