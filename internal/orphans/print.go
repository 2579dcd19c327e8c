package orphans

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// JSON writes the report as JSON.
func (r Report) JSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if r.Orphans == nil {
		r.Orphans = []Orphan{} // an empty list instead of null
	}
	return e.Encode(r)
}

// Text writes the report as text: a line for each orphan, then the counts.
func (r Report) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Orphans) > 0 {
		fmt.Fprintln(w, "WHAT\tID\tBYTES\tNODE\tCREATED\tSOURCE\tGROUP")
	}
	for _, o := range r.Orphans {
		created := ""
		if !o.Created.IsZero() {
			created = o.Created.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", o.What, o.ID, o.Size, cell(strings.Join(o.Nodes, ",")),
			cell(created), cell(o.Source), cell(o.Group))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		Count
	}{{"volumes", r.Volumes}, {"snapshots", r.Snapshots}, {"snapshots in groups", r.Members}} {
		line := fmt.Sprintf("%s: %d held, %d named, %d orphans", c.what, c.Held, c.Named, c.Orphans)
		if c.NotJudged != "" {
			line = fmt.Sprintf("%s: %d held, %d named, the others NOT JUDGED: %s", c.what, c.Held, c.Named, c.NotJudged)
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

// cell returns s for a table, without control characters: s comes from nodes.
func cell(s string) string {
	if quoted := strconv.QuoteToASCII(s); quoted != `"`+s+`"` || strings.Contains(s, " ") {
		return quoted
	}
	return cmp.Or(s, "-")
}
