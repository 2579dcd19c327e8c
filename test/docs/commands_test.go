package docs

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is code between fences, without the indentation of the fence.
type block struct {
	line     int // of the opening fence
	language string
	lines    []string
}

var (
	opening  = regexp.MustCompile("^( *)```(.*)$")
	indented = regexp.MustCompile(`^(?: {4}|\t)\s*\S`)
	// command begins the commands of a block without a language. Other blocks of this kind are
	// output.
	command = regexp.MustCompile(`^(?:kubectl|helm|csi-sidecars|driver|ctr|apt|cosign|curl|git|go|make|cd|mkdir|export|[A-Za-z_]+=\S+) ?`)
	list    = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.) `)
	heredoc = regexp.MustCompile(`<<-?["']?(\w+)`)
	// twice is kubectl as an argument of kubectl: no operator of the shell is between them.
	twice = regexp.MustCompile("(?:^|\\s)kubectl [^|;&(`]*\\skubectl\\s")
	// joined is text after the end of a line: after a backslash, or after the word of a
	// here-document.
	joined = regexp.MustCompile(`\\ +\S|<<-?["']?\w+["']? +\w`)
)

// blocks returns the blocks of a page, and the numbers of its lines that are indented code: after
// an empty line, with four spaces or more. Later paragraphs of a list do not have as many on our
// pages.
func blocks(text string) (all []block, indent []int) {
	var open *block
	before, width := "", 0
	for i, line := range strings.Split(text, "\n") {
		m := opening.FindStringSubmatch(line)
		switch {
		case m != nil && open == nil:
			open, width = &block{line: i + 1, language: strings.TrimSpace(m[2])}, len(m[1])
		case m != nil:
			all, open = append(all, *open), nil
		case open != nil:
			open.lines = append(open.lines, line[min(width, len(line)-len(strings.TrimLeft(line, " "))):])
		case strings.TrimSpace(before) == "" && indented.MatchString(line) && !list.MatchString(line):
			indent = append(indent, i+1)
		}
		before = line
	}
	return all, indent
}

// shell reports whether a block has commands for a shell.
func (b block) shell() bool {
	return strings.HasPrefix(b.language, "sh") || b.language == "" && len(b.lines) > 0 && command.MatchString(b.lines[0])
}

// merged returns the lines of a block that were several lines before a tool wrapped them.
func (b block) merged() (all []string) {
	for i, line := range b.lines {
		here := heredoc.FindStringSubmatch(line)
		if twice.MatchString(line) || joined.MatchString(line) || here != nil && !slices.Contains(b.lines[i:], here[1]) {
			all = append(all, line)
		}
	}
	return all
}

// TestCommandsWorkAsWritten: a reader copies the commands of a page. Code is between fences, since
// a tool that wraps prose merges the lines of indented code.
func TestCommandsWorkAsWritten(t *testing.T) {
	checked := 0
	for page, text := range pages(t) {
		all, indent := blocks(text)
		for _, line := range indent {
			t.Errorf("%s:%d: code without fences", page, line)
		}
		for _, b := range all {
			if !b.shell() {
				continue
			}
			checked++
			for _, line := range b.merged() {
				t.Errorf("%s:%d: several commands in one line: %s", page, b.line, line)
			}
			sh := exec.CommandContext(t.Context(), "sh", "-n")
			sh.Stdin = strings.NewReader(strings.Join(b.lines, "\n") + "\n")
			if out, err := sh.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: sh -n: %v: %s", page, b.line, err, out)
			}
		}
	}
	if checked < 100 {
		t.Errorf("found only %d blocks with commands", checked)
	}
}

func TestMergedCommandsAreFound(t *testing.T) {
	for _, line := range []string{
		"kubectl -n disk scale deployment disk-controller --replicas=0 kubectl -n disk wait",
		"apply -f rights.yaml; kubectl rollout status deployment/d      # succeeds kubectl get pods",
		`kubectl -n disk get deployment disk-controller \ -o jsonpath='{range`,
		"kubectl create -f - <<'EOF' apiVersion: v1 kind: PersistentVolumeClaim metadata: {name:",
		"kubectl create -f - <<'EOF'",
	} {
		if b := (block{lines: []string{line}}); len(b.merged()) != 1 {
			t.Errorf("merged lines are not found: %s", line)
		}
	}
	for _, lines := range [][]string{
		{"kubectl get pv | xargs kubectl delete pv"},
		{"kubectl get pods; kubectl get pv"},
		{"kubectl get pods --selector=$(kubectl get cm x)"},
		{`kubectl get pods \`, "    --watch"},
		{"kubectl create -f - <<'EOF'", "kind: Pod", "EOF"},
		{"cat <<EOF | kubectl create -f -", "kind: Pod", "EOF"},
	} {
		if got := (block{lines: lines}).merged(); len(got) != 0 {
			t.Errorf("these lines are not merged: %q", got)
		}
	}
	const page = "- a list\n  of lines\n      with text\n\n      code\n\n```\n\n    output\n```\n1. x\n\n    - y\n"
	if _, got := blocks(page); !slices.Equal(got, []int{5}) {
		t.Errorf("indented code is found in the lines %v, want 5", got)
	}
}
