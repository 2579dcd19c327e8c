// Package docs tests the pages: their links, their place in the index, and their first sentence.
package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
