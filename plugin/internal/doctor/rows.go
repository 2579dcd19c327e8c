package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/docs"
)

// row is a row of a table with causes and remedies.
type row struct{ heading, cell, cause, remedy, page string }

// rows are the rows of the pages. The pages are the only source of these causes and remedies. A row
// has the key "HEADING: FIRST CELL".
var rows = append(rowsIn(troubleshooting, docs.Troubleshooting), rowsIn(pageSMB, docs.SMB)...)

// rowsIn returns the rows of a page.
func rowsIn(page, text string) (all []row) {
	for _, section := range strings.Split(text, "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		var columns []string
		for line := range strings.Lines(body) {
			cells := strings.Split(strings.Trim(line, "| \n"), " | ")
			cause, remedy := slices.Index(columns, "Cause"), slices.Index(columns, "Remedy")
			switch {
			case !strings.HasPrefix(line, "|"):
				columns = nil
			case columns == nil:
				columns = cells
			case strings.HasPrefix(line, "| ") && cause > 0 && remedy > 0:
				all = append(all, row{heading, cells[0], plain(cells[cause]), plain(cells[remedy]),
					page + "#" + slug(heading)})
			}
		}
	}
	return all
}

// link is a link to another page or section.
var link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// plain returns a cell without its markup, as a part of a sentence.
func plain(cell string) string {
	text := strings.ReplaceAll(link.ReplaceAllString(cell, "$1"), "`", "")
	if first, _, _ := strings.Cut(text, " "); first != "" && first[1:] == strings.ToLower(first[1:]) { // no DNS
		text = strings.ToLower(text[:1]) + text[1:]
	}
	return strings.TrimSuffix(text, ".")
}

// slug returns the anchor of a heading, as GitHub makes it.
func slug(heading string) string {
	keep := func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}
	return strings.Map(keep, strings.ToLower(heading))
}

// messageOf returns the cause, the remedy and the page of a row. It panics, in each test and at
// each start, if a page has no such row.
func messageOf(key string) message {
	for _, r := range rows {
		if key == r.heading+": "+r.cell {
			return message{cause: r.cause, remedy: r.remedy, page: r.page}
		}
	}
	panic(fmt.Sprintf("no page has the row %q", key))
}

// code is a text in a first cell: a message, in which … is any text, or a reason.
var code = regexp.MustCompile("`([^`]+)`")

// messagesIn returns the messages of sections.
func messagesIn(headings ...string) (all []message) {
	for _, heading := range headings {
		for _, r := range rows {
			var patterns []string
			for _, m := range code.FindAllStringSubmatch(r.cell, -1) {
				patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(m[1]), "…", ".*"))
			}
			if r.heading == heading {
				all = append(all, listed(strings.Join(patterns, "|"), heading+": "+r.cell))
			}
		}
	}
	return all
}

// conditionsIn returns the conditions of sections, by reason. The first section with a reason
// counts.
func conditionsIn(headings ...string) map[string]message {
	all := map[string]message{}
	for _, heading := range slices.Backward(headings) {
		for _, r := range rows {
			if reason := strings.Trim(r.cell, "`"); r.heading == heading {
				all[reason] = message{cause: reason + ": " + r.cause, remedy: r.remedy, page: r.page}
			}
		}
	}
	return all
}

// Conditions of a volume and of a storage, by cluster.Driver.SMB and by reason. A reason may be in
// two tables. The row of the other backend has files that a share or a node does not have.
var (
	volumeConditions = map[bool]map[string]message{
		false: conditionsIn("Conditions of a volume", "Conditions"),
		true:  conditionsIn("Conditions", "Conditions of a volume"),
	}
	storageConditions = map[bool]map[string]message{
		false: conditionsIn("Conditions of the storage", "Conditions"),
		true:  conditionsIn("Conditions", "Conditions of the storage"),
	}
)
