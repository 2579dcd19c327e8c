package manifests

import (
	"slices"
	"strings"
	"testing"
)

func object(source, kind, name, more string) Object {
	return Object{source, "kind: " + kind + "\nmetadata:\n  name: " + name + "\nspec:\n" + more}
}

// TestADifferenceMakesItsRendering makes renderings of their differences: each has another line,
// another object or another order.
func TestADifferenceMakesItsRendering(t *testing.T) {
	from := []Object{object("a", "Pod", "one", "  x: 1\n  x: 1\n  y: 2\n"), object("a", "Pod", "two", "  z: 1\n"),
		object("b", "Service", "one", "  x: 1\n"), object("b", "Service", "two", "  x: 1\n")}
	to := []Object{from[0], object("a", "Pod", "new", "  x: 1\n  y: 3\n"), object("a", "Secret", "new", "  s: 1\n"),
		object("b", "Service", "one", "  x: 2\n  x: 2\n"), from[3]}
	renderings := [][]Object{from, to}
	for i, o := range to {
		without := slices.Delete(slices.Clone(to), i, i+1)
		renderings = append(renderings, without)
		for j := range without {
			if moved := slices.Insert(slices.Clone(without), j, o); j != i {
				renderings = append(renderings, moved)
			}
		}
		lines := strings.SplitAfter(strings.TrimSuffix(o.Text, "\n"), "\n")
		for j := range lines {
			for _, line := range []string{"", "  other: 1\n", lines[j] + "  more: 1\n"} {
				changed := slices.Clone(to)
				changed[i].Text = strings.Join(lines[:j], "") + line + strings.Join(lines[j+1:], "") + "\n"
				if strings.Contains(changed[i].Text, "kind: ") && strings.Contains(changed[i].Text, "metadata:\n  name: ") {
					renderings = append(renderings, changed)
				}
			}
		}
	}
	for _, r := range renderings {
		text := Difference("base", from, r)
		if got, err := apply(objectsOf(Full(from)), text); err != nil || !slices.Equal(got, r) {
			t.Errorf("the differences make\n%v, %v, want\n%v\n%s", got, err, r, text)
		}
	}
}
