package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Object is a rendered object of the chart.
type Object struct {
	Source string // the template, below templates/
	Text   string
}

var (
	kindLine = regexp.MustCompile(`(?m)^kind: (.*)`)
	nameLine = regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*?  name: (.*)`)
)

// kind returns the kind of the object.
func (o Object) kind() string { return kindLine.FindStringSubmatch(o.Text)[1] }

// id identifies the object in its rendering.
func (o Object) id() string {
	return o.Source + " " + o.kind() + " " + nameLine.FindStringSubmatch(o.Text)[1]
}

// Full returns a rendering as one text. objectsOf is the inverse.
func Full(objects []Object) string {
	var text strings.Builder
	for _, o := range objects {
		fmt.Fprintf(&text, "---\n# %s\n%s", o.Source, o.Text)
	}
	return text.String()
}

// Difference returns the text that makes the rendering to of the rendering from. Every change of to
// changes the text. An object that is missing in to has a line. A changed object has its changed
// lines. A new object has its place and its text, or its differences from a similar object of from.
func Difference(name string, from, to []Object) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Differences from %[1]s, written by make chart. @@ has the number of a line of the object in "+
		"%[1]s.\n", name)
	before := "the beginning"
	for _, e := range edits(ids(from), ids(to)) {
		switch {
		case e.to < 0:
			fmt.Fprintf(&text, "--- without %s\n", from[e.from].id())
			continue
		case e.from < 0:
			fmt.Fprintf(&text, "--- %s, after %s%s", to[e.to].id(), before, newText(from, to[e.to]))
		case from[e.from].Text != to[e.to].Text:
			fmt.Fprintf(&text, "--- %s\n%s", to[e.to].id(), changedLines(from[e.from].Text, to[e.to].Text))
		}
		before = to[e.to].id()
	}
	return text.String()
}

// newText returns the text of an object that from does not have. The differences from an object of
// the same kind replace the text if they have less than half of its lines.
func newText(from []Object, o Object) string {
	text, most := "\n"+o.Text, strings.Count(o.Text, "\n")/2
	for _, similar := range from {
		if similar.kind() != o.kind() {
			continue
		}
		lines := changedLines(similar.Text, o.Text)
		if n := strings.Count(lines, "\n"); n < most {
			text, most = fmt.Sprintf(", like %s\n%s", similar.id(), lines), n
		}
	}
	return text
}

func ids(objects []Object) (all []string) {
	for _, o := range objects {
		all = append(all, o.id())
	}
	return all
}

// changedLines returns the lines that only from has, with "-", and the lines that only to has, with
// "+".
func changedLines(from, to string) string {
	var text strings.Builder
	old, current := strings.SplitAfter(from, "\n"), strings.SplitAfter(to, "\n")
	same := true
	for _, e := range edits(old, current) {
		if e.from >= 0 && e.to >= 0 {
			same = true
			continue
		}
		if same {
			fmt.Fprintf(&text, "@@ %d\n", e.at+1)
			same = false
		}
		if e.to < 0 {
			text.WriteString("-" + old[e.from])
		} else {
			text.WriteString("+" + current[e.to])
		}
	}
	return text.String()
}

// edit is a step that makes a list of another one: indexes into both, or -1 where an element is
// only in the other one. at is the number of elements before it of the first list.
type edit struct{ from, to, at int }

// edits returns the shortest list of steps, by the longest common subsequence.
func edits(from, to []string) (all []edit) {
	common := make([][]int, len(from)+1) // of the rest of both lists
	for i := range common {
		common[i] = make([]int, len(to)+1)
	}
	for i := len(from) - 1; i >= 0; i-- {
		for j := len(to) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if from[i] == to[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	for i, j := 0, 0; i < len(from) || j < len(to); {
		switch {
		case i < len(from) && j < len(to) && from[i] == to[j]:
			all = append(all, edit{i, j, i})
			i, j = i+1, j+1
		case j == len(to) || i < len(from) && common[i+1][j] >= common[i][j+1]:
			all = append(all, edit{i, -1, i})
			i++
		default:
			all = append(all, edit{-1, j, i})
			j++
		}
	}
	return all
}

// Read returns the text of a file of rendered objects. A file that ends in .diff has the result of
// Difference: Read makes the text of it and of the file in the same directory that it names.
func Read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil || filepath.Ext(path) != ".diff" {
		return string(text), err
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# Differences from "), ",")
	base := filepath.Join(filepath.Dir(path), name)
	if _, err := os.Stat(base + ".diff"); err == nil {
		base += ".diff"
	} else {
		base += ".yaml"
	}
	from, err := Read(base)
	if err != nil {
		return "", err
	}
	to, err := apply(objectsOf(from), string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return Full(to), nil
}

func objectsOf(text string) (all []Object) {
	for _, part := range strings.Split("\n"+strings.TrimSuffix(text, "\n"), "\n---\n")[1:] {
		source, text, _ := strings.Cut(strings.TrimPrefix(part, "# "), "\n")
		all = append(all, Object{source, text + "\n"})
	}
	return all
}

// apply returns the rendering to for a rendering from and the result of Difference.
func apply(from []Object, difference string) ([]Object, error) {
	parts := strings.Split(strings.TrimSuffix(difference, "\n"), "\n--- ")[1:]
	all := slices.DeleteFunc(slices.Clone(from),
		func(o Object) bool { return slices.Contains(parts, "without "+o.id()) })
	for _, part := range parts {
		heading, body, _ := strings.Cut(part+"\n", "\n")
		if strings.HasPrefix(heading, "without ") {
			continue
		}
		heading, similar, _ := strings.Cut(heading, ", like ")
		id, before, added := strings.Cut(heading, ", after ")
		if !added {
			similar = id
		}
		if i := slices.Index(ids(from), similar); i >= 0 {
			var err error
			if body, err = applyLines(from[i].Text, body); err != nil {
				return nil, fmt.Errorf("%s: %w", id, err)
			}
		} else if similar != "" {
			return nil, fmt.Errorf("%s: no object %s", id, similar)
		}
		source, _, _ := strings.Cut(id, " ")
		at := slices.Index(ids(all), before)
		if added {
			all = slices.Insert(all, at+1, Object{source, body})
		} else {
			all[slices.Index(ids(all), id)].Text = body
		}
	}
	return all, nil
}

// applyLines returns the text to for a text from and the result of changedLines.
func applyLines(from, changes string) (string, error) {
	var text strings.Builder
	old, next := strings.SplitAfter(from, "\n"), 0
	for line := range strings.Lines(changes) {
		switch line[0] {
		case '@':
			n, err := strconv.Atoi(strings.TrimSpace(line[len("@@"):]))
			if err != nil || n <= next || n > len(old) {
				return "", fmt.Errorf("invalid line number: %s", line)
			}
			text.WriteString(strings.Join(old[next:n-1], ""))
			next = n - 1
		case '-':
			if next == len(old) || old[next] != line[1:] {
				return "", fmt.Errorf("line %d is not %s", next+1, line[1:])
			}
			next++
		default:
			text.WriteString(line[1:])
		}
	}
	return text.String() + strings.Join(old[next:], ""), nil
}
