package sidecar

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Help prints all flags and commands, grouped by controller.
func (c *Command) Help(w io.Writer) {
	c.declare()
	fmt.Fprintf(w, "Usage: %s [--controllers=NAME,…] [flags]\n", c.Name)
	fmt.Fprintf(w, "       %s help | version\n", c.Name)
	for _, name := range sorted(c.More) {
		fmt.Fprintf(w, "       %s %s [--controllers=NAME,…] [flags]\t%s\n", c.Name, name, c.More[name].About)
	}
	fmt.Fprintf(w, "\nFor the whole process:\n")
	c.table.print(w, "")
	for _, k := range c.Controllers {
		fmt.Fprintf(w, "\n%s: %s%s\n", k.Name(), k.About(), byName(k))
		c.table.print(w, k.Name())
	}
	for _, name := range sorted(c.More) {
		if own := c.More[name].table(); len(own.entries) > 0 {
			fmt.Fprintf(w, "\nOf %s %s alone:\n", c.Name, name)
			own.print(w, "")
		}
	}
	fmt.Fprint(w, "\nA controller's flag also works without its prefix: --timeout=30s is for every controller that "+
		"has a timeout and is not\ngiven one of its own. Without either, each has upstream's default.\n")
}

func byName(k Controller) string {
	if k.Needs().ByName {
		return " Not part of *."
	}
	return ""
}

// print writes the flags of an owner.
func (t *table) print(w io.Writer, owner string) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	defer tw.Flush()
	for _, e := range t.entriesOf(owner) {
		fmt.Fprintf(tw, "  --%s\t%s\n", e.full(e.name), e.says())
	}
}

func (t *table) entriesOf(owner string) []*entry {
	var all []*entry
	for _, e := range t.entries {
		if e.owner == owner {
			all = append(all, e)
		}
	}
	return all
}

// says returns the usage of the flag with its default and former names.
func (e *entry) says() string {
	text := strings.ReplaceAll(strings.TrimSpace(e.usage), "\n", " ")
	var more []string
	if e.fallback != "" && e.fallback != "false" {
		more = append(more, "default "+e.fallback)
	}
	for _, o := range e.old {
		more = append(more, "also --"+e.full(o))
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, "; ") + ")"
	}
	return text
}

// Markdown prints the same as Markdown tables, for docs.
func (c *Command) Markdown(w io.Writer) {
	c.declare()
	fmt.Fprintf(w, "## The whole process\n\n")
	c.table.markdown(w, "")
	for _, k := range c.Controllers {
		fmt.Fprintf(w, "\n## %s\n\n%s%s\n\n", k.Name(), k.About(), byName(k))
		c.table.markdown(w, k.Name())
	}
	for _, name := range sorted(c.More) {
		fmt.Fprintf(w, "\n## %s %s\n\nIt takes all flags above, and of its own:\n\n", c.Name, name)
		c.More[name].table().markdown(w, "")
	}
}

// table returns a table with the flags of the subcommand.
func (s Subcommand) table() *table {
	t := &table{}
	if s.Flags != nil {
		s.Flags(&Flags{table: t})
	}
	return t
}

func (t *table) markdown(w io.Writer, owner string) {
	flags := t.entriesOf(owner)
	if len(flags) == 0 {
		fmt.Fprintln(w, "It has no flags of its own.")
		return
	}
	fmt.Fprint(w, "| Flag | Default | Meaning |\n|---|---|---|\n")
	for _, e := range flags {
		fallback := ""
		if e.fallback != "" {
			fallback = "`" + e.fallback + "`"
		}
		text := strings.NewReplacer("\n", " ", "|", "\\|", "<", "&lt;", "*", "\\*").Replace(strings.TrimSpace(e.usage))
		for _, o := range e.old {
			text += fmt.Sprintf("; also `--%s`", e.full(o))
		}
		fmt.Fprintf(w, "| `--%s` | %s | %s |\n", e.full(e.name), fallback, text)
	}
}
