package build

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// Notes is the artifact with the release notes.
const Notes = "RELEASE_NOTES.md"

// notes writes the release notes.
func (r *Release) notes(ctx context.Context) error {
	section, err := r.section(ctx)
	if err != nil {
		return err
	}
	return r.write(Notes, fmt.Appendf(nil, "# Causeway %s\n\n%s\n", r.Version, section))
}

// section returns the text of the version in CHANGELOG.md.
func (r *Release) section(ctx context.Context) (string, error) {
	changelog, err := r.git(ctx, "show", r.made.Commit+":CHANGELOG.md")
	if err != nil {
		return "", err
	}
	return section(string(changelog), r.number())
}

var (
	headings    = regexp.MustCompile(`(?m)^## \[([^]]+)\].*\n`)
	definitions = regexp.MustCompile(`(?m)^\[[^]]+\]: \S+\n?`) // of links, at the end of the file
	relative    = regexp.MustCompile(`\]\(([^():#\s]+)((?:#[^()\s]+)?)\)`)
)

// section returns the text below the heading of a version in a changelog. Its links lead to the
// pages in the repository, as the notes are read elsewhere.
func section(changelog, number string) (string, error) {
	places := headings.FindAllStringSubmatchIndex(changelog, -1)
	for i, p := range places {
		if changelog[p[2]:p[3]] != number {
			continue
		}
		end := len(changelog)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		text := strings.TrimSpace(definitions.ReplaceAllString(changelog[p[1]:end], ""))
		if text == "" {
			return "", fmt.Errorf("CHANGELOG.md: the section of %s is empty", number)
		}
		return relative.ReplaceAllString(text, "](https://"+module+"/blob/v"+number+"/$1$2)"), nil
	}
	return "", fmt.Errorf("CHANGELOG.md has no section ## [%s]", number)
}
