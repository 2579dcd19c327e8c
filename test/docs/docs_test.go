// Package docs tests the pages: their links, their place in the index, and their first sentence.
package docs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// root is the directory of the repository.
var root = filepath.Join("..", "..")

// pages returns the Markdown files of the repository, by their paths below root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() && (rel == "bin" || rel == ".git" || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if entry.IsDir() || (!strings.HasSuffix(path, ".md") && !strings.HasSuffix(path, ".md.gotmpl")) {
			return nil
		}
		text, err := os.ReadFile(path)
		all[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 30 {
		t.Fatalf("found only %d pages", len(all))
	}
	return all
}

// fence matches the lines around code.
var fence = regexp.MustCompile("^ *```")

// prose returns the lines of a page outside of code.
func prose(text string) (lines []string) {
	inside := false
	for line := range strings.Lines(text) {
		if fence.MatchString(line) {
			inside = !inside
			continue
		}
		if !inside {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

var (
	heading = regexp.MustCompile(`^#+ (.+)$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	markup  = regexp.MustCompile("`|\\[([^]]*)\\]\\([^)]*\\)")
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors returns the anchors of a page, as GitHub and the documentation site make them.
func anchors(text string) map[string]bool {
	found, count := map[string]bool{}, map[string]int{}
	for _, line := range prose(text) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		anchor := markup.ReplaceAllString(m[1], "$1")
		anchor = strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(anchor), ""), " ", "-")
		if n := count[anchor]; n > 0 {
			found[fmt.Sprintf("%s-%d", anchor, n)] = true
		} else {
			found[anchor] = true
		}
		count[anchor]++
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	checked := 0
	for page, text := range all {
		for _, line := range prose(text) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				target, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, ":") { // on the Internet
					continue
				}
				path := page
				if target != "" {
					path = filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
				}
				checked++
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Errorf("%s: the link %s: %v", page, m[1], err)
				} else if other, ok := all[path]; anchor != "" && ok && !anchors(other)[anchor] {
					t.Errorf("%s: the link %s: %s has no such heading", page, m[1], path)
				}
			}
		}
	}
	if checked < 200 {
		t.Errorf("found only %d links", checked)
	}
}

// TestIndexHasEveryPage: a page that the index does not list is found by search only.
func TestIndexHasEveryPage(t *testing.T) {
	all := pages(t)
	listed := map[string]bool{}
	for _, index := range []string{"docs/README.md", "docs/decisions/README.md"} {
		for _, m := range link.FindAllStringSubmatch(all[index], -1) {
			target, _, _ := strings.Cut(m[1], "#")
			listed[filepath.ToSlash(filepath.Join(filepath.Dir(index), target))] = true
		}
	}
	for page := range all {
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && !listed[page] {
			t.Errorf("%s is not in docs/README.md", page)
		}
	}
}

// TestPagesNameTheirReaders: the first sentence of a page names its readers.
func TestPagesNameTheirReaders(t *testing.T) {
	for page, text := range pages(t) {
		if !strings.HasPrefix(page, "docs/") || page == "docs/README.md" {
			continue
		}
		_, body, _ := strings.Cut(text, "\n")
		if !strings.HasPrefix(strings.TrimLeft(body, "\n"), "For ") {
			t.Errorf("%s does not begin with its readers", page)
		}
	}
}

// TestNamedTestsExist: a page that names a test as its proof names a test of the code. The counts
// of a section of the proposals are those of its table.
func TestNamedTestsExist(t *testing.T) {
	all := pages(t)
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil // another suite has removed it
		}
		if err == nil && d.IsDir() && (d.Name() == "bin" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	for _, page := range []string{
		"docs/reference/proposals.md", "docs/explanation/production-readiness.md", "docs/explanation/security.md",
	} {
		found := named.FindAllString(all[page], -1)
		if len(found) < 5 {
			t.Errorf("%s names only %d tests", page, len(found))
		}
		for _, name := range found {
			if !tests[name] {
				t.Errorf("%s: there is no %s", page, name)
			}
		}
	}
	counts := regexp.MustCompile(`(?m)^\d+ statements: (\d+) done, (\d+) differently, (\d+) not yet, (\d+) not applicable\.$`)
	for _, section := range strings.Split(all["docs/reference/proposals.md"], "\n## ")[1:] {
		m := counts.FindStringSubmatch(section)
		if m == nil {
			t.Errorf("proposals.md: no counts in %.40q", section)
			continue
		}
		for i, state := range []string{"done", "done differently", "not yet", "not applicable"} {
			if got := strings.Count(section, " | "+state+" |"); m[i+1] != fmt.Sprint(got) {
				t.Errorf("proposals.md: %.40q says %s %s, the table has %d", section, m[i+1], state, got)
			}
		}
	}
}

// TestReadmeIsShort: the front page has at most 80 lines, and names commands that exist.
func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 80 {
		t.Errorf("README.md has %d lines, want at most 80", n)
	}
	commands := regexp.MustCompile(`(?m)^make ([a-z-]+)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) == 0 {
		t.Error("README.md has no command")
	}
	for _, m := range commands {
		if out, err := exec.Command("make", "-C", root, "-n", m[1]).CombinedOutput(); err != nil {
			t.Errorf("make %s: %v, %s", m[1], err, out)
		}
	}
}

// TestReadmeTellsTheSize: the numbers of lines on the front page, of the spine and of all packages
// of this module in the driver for Linux, without tests, are right within a twentieth.
func TestReadmeTellsTheSize(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "-deps", "-f",
		`{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$.Dir}}/{{.}} {{end}}{{end}}{{end}}`, "./cmd/driver")
	list.Dir, list.Env = root, append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := func(files ...string) (n int) {
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			n += bytes.Count(content, []byte("\n"))
		}
		return n
	}
	var spine []string
	for _, f := range []string{"controller", "node", "validate", "errors", "lock", "server", "interceptors"} {
		spine = append(spine, filepath.Join(root, "pkg/driver", f+".go"))
	}
	spine = append(spine, filepath.Join(root, "pkg/backend/backend.go"), filepath.Join(root, "pkg/mounter/mounter.go"))
	for _, c := range []struct {
		pattern string
		want    int
	}{
		{`spine has ([0-9,]+) lines`, lines(spine...)},
		{`driver for Linux has ([0-9,]+)`, lines(strings.Fields(string(files))...)},
	} {
		m := regexp.MustCompile(c.pattern).FindSubmatch(text)
		if m == nil {
			t.Errorf("README.md has no %q", c.pattern)
			continue
		}
		got, err := strconv.Atoi(strings.ReplaceAll(string(m[1]), ",", ""))
		if err != nil || max(got, c.want)-min(got, c.want) > c.want/20 {
			t.Errorf("README.md: %s: there are %d, %v", m[0], c.want, err)
		}
	}
}
