package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Format of the second serial port: the output of each suite between a line with its package and a
// line with its exit code, and a last line. A guest that panics or hangs writes no last line.
var (
	began   = regexp.MustCompile(`^vm: begin (\S+)$`)
	ended   = regexp.MustCompile(`^vm: end (\S+) (.*)$`)
	passed  = regexp.MustCompile(`^--- PASS: `)
	skipped = regexp.MustCompile(`^ *--- SKIP: (\S+)`)
)

const allDone = "vm: done"

// outcome is how a suite ended.
type outcome struct {
	passed  int
	skipped []string
	exit    string // "0" if it passed
}

// judge returns an error unless each suite ran to its end, with at least a test, and all tests that
// ran passed.
func judge(suites []suite, results string) error {
	outcomes, done := read(results)
	var failed []error
	for _, s := range suites {
		o, ok := outcomes[s.Package+"#"+s.Run]
		switch {
		case !ok || o.exit == "":
			failed = append(failed, fmt.Errorf("%s: it did not run to its end", s.Package))
		case o.exit != "0":
			failed = append(failed, fmt.Errorf("%s: %s", s.Package, o.exit))
		case len(o.skipped) > 0:
			failed = append(failed, fmt.Errorf("%s: skipped, and the guest is to have all they need: %s", s.Package,
				strings.Join(o.skipped, ", ")))
		case o.passed == 0:
			failed = append(failed, fmt.Errorf("%s: no test matches %q", s.Package, s.Run))
		}
	}
	if !done {
		failed = append(failed, errors.New("the guest did not come to its end: it panicked, hung or was stopped"))
	}
	return errors.Join(failed...)
}

// read reads the output of the guest, and reports whether it is complete.
func read(results string) (outcomes map[string]*outcome, done bool) {
	outcomes = map[string]*outcome{}
	var now *outcome
	for line := range strings.Lines(results) {
		line = strings.TrimRight(line, "\r\n")
		if m := began.FindStringSubmatch(line); m != nil {
			now = &outcome{}
			outcomes[m[1]] = now
			continue
		}
		if line == allDone {
			done = true
		}
		if now == nil {
			continue
		}
		if m := ended.FindStringSubmatch(line); m != nil && outcomes[m[1]] == now {
			now.exit, now = m[2], nil
		} else if passed.MatchString(line) {
			now.passed++
		} else if m := skipped.FindStringSubmatch(line); m != nil {
			now.skipped = append(now.skipped, m[1])
		}
	}
	return outcomes, done
}
