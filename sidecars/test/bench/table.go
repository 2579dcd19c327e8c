package main

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/test/figures"
)

// table is the output: Markdown, for docs/reference/benchmarks.md.
type table struct{ rows []string }

// compare adds a figure of both ways, with a goal for their ratio.
func (t *table) compare(what string, separate, combined float64, asked ...figures.Goal) {
	ratio := combined / separate
	t.add(what, number(separate), number(combined), fmt.Sprintf("%.2f", ratio), judge(ratio, asked))
}

// limit adds a figure of both ways, with a goal for the combined way.
func (t *table) limit(what string, separate, combined float64, asked ...figures.Goal) {
	t.add(what, number(separate), number(combined), fmt.Sprintf("%.2f", combined/separate), judge(combined, asked))
}

// alone adds a figure that only we have.
func (t *table) alone(what string, figure float64, asked ...figures.Goal) {
	t.add(what, "", number(figure), "", judge(figure, asked))
}

func (t *table) add(cells ...string) {
	t.rows = append(t.rows, "| "+strings.Join(cells, " | ")+" |")
}

func (t *table) print() {
	fmt.Println("| | separate | combined | ratio | asked |\n|---|---|---|---|---|")
	fmt.Println(strings.Join(t.rows, "\n"))
}

func number(f float64) string {
	if f >= 100 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

func judge(figure float64, asked []figures.Goal) string {
	var all []string
	for _, g := range asked {
		all = append(all, g.Judge(figure))
	}
	return strings.Join(all, ", ")
}
