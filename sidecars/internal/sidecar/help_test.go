package sidecar

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestHelpHasEveryFlagOnce(t *testing.T) {
	red, blue := pair()
	blue.needs.ByName = true
	c := command(nil, red, blue)
	c.More = map[string]Subcommand{"paint": {About: "Paints.",
		Run: func([]Controller, []string, io.Writer) error { return nil }}}
	var help bytes.Buffer
	c.Help(&help)
	for _, want := range []string{
		"Usage: toys [--controllers=NAME,…] [flags]\n", "toys paint", "Paints.",
		"\nred: Plays <red> | with * and more.\n", "\nblue: Plays <blue> | with * and more. Not part of *.\n",
		"  --red-timeout", "how long a `call` may take (default 10s)", "(default 5; also --red-threads)",
	} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("%q is not in\n%s", want, &help)
		}
	}
	for _, e := range c.table.entries {
		if n := strings.Count(help.String(), "  --"+e.full(e.name)+" "); n != 1 {
			t.Errorf("--%s is there %d times", e.full(e.name), n)
		}
	}
}

func TestMarkdownIsOneTableForEach(t *testing.T) {
	red, blue := pair()
	var page bytes.Buffer
	command(nil, red, blue).Markdown(&page)
	for _, want := range []string{
		"## The whole process\n\n| Flag | Default | Meaning |\n|---|---|---|\n",
		"\n## red\n\n", "| `--red-workers` | `5` | how many \\| at once; also `--red-threads` |\n",
		"\n## blue\n\n", "| `--blue-timeout` | `10s` | how long a `call` may take |\n",
		"| `--blue-loud` | `false` | be loud |\n",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("%q is not in\n%s", want, &page)
		}
	}
}
