package main

import (
	"strings"
	"testing"
)

func TestOnlyCompleteSuitesPass(t *testing.T) {
	two := []suite{{Package: "a/b", Run: "One"}, {Package: "c", Run: "Two"}}
	const a = "vm: begin a/b#One\r\n=== RUN   TestOne\n    --- PASS: TestOne/sub (0.00s)\n--- PASS: TestOne " +
		"(0.00s)\nPASS\nvm: end a/b#One 0\n"
	const c = "vm: begin c#Two\n--- PASS: TestTwo (0.00s)\nPASS\nvm: end c#Two 0\n"
	const end = "vm: done\n"
	for name, tc := range map[string]struct{ results, want string }{
		"all is well":        {a + c + end, ""},
		"nothing":            {"", "a/b: it did not run"},
		"no last line":       {a + c, "did not come to its end"},
		"a suite is missing": {a + end, "c: it did not run to its end"},
		"a suite has no end": {a + "vm: begin c#Two\n--- PASS: TestTwo (0.00s)\n",
			"c: it did not run to its end"},
		"an end without a beginning": {a + "vm: end c#Two 0\n" + end, "c: it did not run to its end"},
		"the end of another": {a + strings.Replace(c, "end c#Two", "end a/b#One", 1) + end,
			"c: it did not run to its end"},
		"a suite fails": {a + strings.Replace(c, "Two 0", "Two exit status 1", 1) + end,
			"c: exit status 1"},
		"no test": {a + "vm: begin c#Two\ntesting: warning: no tests to run\nPASS\nvm: end c#Two " +
			"0\n" + end, `c: no test matches "Two"`},
		"a test is skipped": {a + strings.Replace(c, "PASS: Test", "SKIP: Test", 1) + end, "c: skipped"},
		"a test in a test is skipped": {strings.Replace(a, "    --- PASS", "    --- SKIP", 1) + c + end,
			"TestOne/sub"},
		"what passes is only in another": {strings.Replace(a, "--- PASS: TestOne (", "", 1) + c + end,
			`a/b: no test matches "One"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(two, tc.results)
			if tc.want == "" && err != nil {
				t.Error(err)
			} else if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
