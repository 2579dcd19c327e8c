package csidriver

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// shown is the output of the command show.
type shown struct {
	Node   string          `json:"node"`
	Path   string          `json:"path,omitempty"`
	Record json.RawMessage `json:"record,omitempty"`
	Mounts []string        `json:"mounts"` // lines of /proc/self/mountinfo
	Errors []string        `json:"errors,omitempty"`
}

const showUsage = `%[1]s show ID TEXT,… FLAG…
prints the path, the record and the mounts of a volume on this node as JSON: the lines of
/proc/self/mountinfo with the ID or one of the texts. The flags are those of the running driver.
kubectl causeway runs it in the pod of the node.
`

// show runs the command show and returns the exit code.
func show(p Program, args []string, env Environment) int {
	if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
		fmt.Fprintf(env.Stderr, showUsage, env.Command)
		return exitOK
	}
	if len(args) < 2 || strings.HasPrefix(args[0], "-") || strings.HasPrefix(args[1], "-") {
		fmt.Fprintf(env.Stderr, "%s: show needs an ID and a list of texts (show --help)\n", env.Command)
		return exitUsage
	}
	o, err := parse(p, args[2:], env)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitUsage
	}
	env.tune(gcPercent)
	if err := json.NewEncoder(env.Stdout).Encode(o.show(args[0], strings.Split(args[1], ","))); err != nil {
		fmt.Fprintf(env.Stderr, "%s: %v\n", env.Command, err)
		return exitError
	}
	return exitOK
}

// show describes a volume. A part that cannot be read is in Errors.
func (o *options) show(id string, texts []string) shown {
	s := shown{Node: o.nodeID, Mounts: []string{}}
	note := func(err error) {
		if err != nil {
			s.Errors = append(s.Errors, err.Error())
		}
	}
	if describe := o.chosen().Describe; describe != nil {
		d, err := describe(o.config(), id)
		note(err)
		s.Path, s.Record = d.Path, d.Record
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		note(err)
		return s
	}
	defer f.Close()
	s.Mounts, err = linesWith(f, append(texts, id))
	note(err)
	return s
}

// linesWith returns the lines that have one of the texts.
func linesWith(in io.Reader, texts []string) ([]string, error) {
	found := []string{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		for _, text := range texts {
			if text != "" && strings.Contains(lines.Text(), text) {
				found = append(found, lines.Text())
				break
			}
		}
	}
	return found, lines.Err()
}
