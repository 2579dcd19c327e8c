package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
)

// row is a part of the tests, in the form of a run in docs/reference/conformance.json.
type row struct {
	Suite         string            `json:"suite"`
	Backend       string            `json:"backend"`
	OS            string            `json:"os"`
	Configuration string            `json:"configuration"`
	Seconds       float64           `json:"seconds"`
	Passed        int               `json:"passed"`
	Skipped       map[string]int    `json:"skipped"` // how many, by the reason
	Tests         map[string]string `json:"tests"`   // those that were skipped, with their reasons
}

func newRow(suite, backend, configuration string) *row {
	return &row{Suite: suite, Backend: backend, OS: "windows", Configuration: configuration, Skipped: map[string]int{},
		Tests: map[string]string{}}
}

// skip counts a test that was skipped.
func (r *row) skip(name, reason string) {
	r.Skipped[reason]++
	r.Tests[name] = "skipped: " + reason
}

// add counts the tests of a package.
func (r *row) add(name string, o *outcome) {
	r.Passed += o.passed
	for _, test := range o.skips {
		r.skip(name+" "+test, reason(o.output[test]))
	}
}

// at matches the place in the sources in a line of a test.
var at = regexp.MustCompile(`^\s*\S+_test\.go:\d+: `)

// reason returns the last message of a test that was skipped.
func reason(output []string) string {
	text := "no reason"
	for _, line := range output {
		if place := at.FindString(line); place != "" {
			text = strings.TrimSpace(strings.TrimPrefix(line, place))
		}
	}
	return text
}

// writeRows writes rows as JSON.
func writeRows(path string, rows []*row) error {
	data, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
