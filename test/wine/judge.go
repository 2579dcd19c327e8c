package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// outcome is how the tests of a package ended.
type outcome struct {
	action string   // "pass" if all is well, "" without an end
	passed int      // tests, without their subtests
	skips  []string // with subtests
	failed []string
	output map[string][]string // by test; "" for the package

	specs   map[string]specs // by configuration of csi-sanity
	summary string           // of csi-sanity
}

// specs counts the specs of csi-sanity that passed and that were skipped.
type specs struct{ passed, skipped string }

var (
	specLine    = regexp.MustCompile(`sanity_test\.go:\d+: (.+): (\d+) specs passed, (\d+) do not apply`)
	summaryLine = regexp.MustCompile(`(\d+) Passed \| (\d+) Failed \|.*Skipped`)
	colors      = regexp.MustCompile(`\x1b\[[0-9;]*m`)
)

// read reads the output of go test -json.
func read(r io.Reader) (map[string]*outcome, error) {
	outcomes := map[string]*outcome{}
	for d := json.NewDecoder(r); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return outcomes, nil
		} else if err != nil {
			return outcomes, err
		}
		if e.Package == "" { // of the build
			continue
		}
		o := outcomes[e.Package]
		if o == nil {
			o = &outcome{output: map[string][]string{}, specs: map[string]specs{}}
			outcomes[e.Package] = o
		}
		o.add(e.Action, e.Test, e.Output)
	}
}

// add adds an event of go test -json.
func (o *outcome) add(action, test, output string) {
	switch {
	case action == "output":
		o.output[test] = append(o.output[test], output)
		if m := specLine.FindStringSubmatch(output); m != nil {
			o.specs[m[1]] = specs{m[2], m[3]}
		}
		if m := summaryLine.FindString(colors.ReplaceAllString(output, "")); m != "" {
			o.summary = m
		}
	case test == "" && (action == "pass" || action == "fail" || action == "skip"):
		o.action = action
	case action == "pass" && !strings.Contains(test, "/"):
		o.passed++
	case action == "skip":
		o.skips = append(o.skips, test)
	case action == "fail":
		o.failed = append(o.failed, test)
	}
}

// required is a configuration of csi-sanity that must have run: directories of hostpath with the
// links of the driver.
const required = "links of Windows"

// judge returns an error unless all tests of the packages passed under Wine, each package with at
// least a test, and csi-sanity ran there with the same numbers as on Linux.
func judge(packages []string, wine map[string]*outcome, linux *outcome) error {
	var failed []error
	configurations := map[string]specs{}
	for _, name := range packages {
		switch o := wine[module+name]; {
		case o == nil || o.action == "":
			failed = append(failed, fmt.Errorf("%s: it did not run to its end", name))
		case o.action != "pass" || len(o.failed) > 0:
			failed = append(failed, fmt.Errorf("%s: failed: %s", name, strings.Join(o.failed, ", ")))
		case o.passed == 0:
			failed = append(failed, fmt.Errorf("%s: no test passed", name))
		}
		if o := wine[module+name]; o != nil {
			maps.Copy(configurations, o.specs)
		}
	}
	if linux == nil || linux.action != "pass" {
		failed = append(failed, errors.New("csi-sanity failed on Linux"))
		linux = &outcome{}
	}
	if configurations[required].passed == "" {
		failed = append(failed, fmt.Errorf("csi-sanity did not run under Wine with %q", required))
	}
	for _, c := range slices.Sorted(maps.Keys(configurations)) {
		if got, want := configurations[c], linux.specs[c]; got != want || got.passed == "0" {
			failed = append(failed, fmt.Errorf("csi-sanity, %s: under Wine %s specs passed and %s were skipped, "+
				"on Linux "+
				"%q and %q", c, got.passed, got.skipped, want.passed, want.skipped))
		}
	}
	return errors.Join(failed...)
}
