package main

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

// events are the output of go test -json for a package.
func events(name string, lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		action, rest, _ := strings.Cut(line, " ")
		test, output, _ := strings.Cut(rest, ": ")
		event, err := json.Marshal(map[string]string{"Action": action, "Package": module + name, "Test": test,
			"Output": output})
		if err != nil {
			panic(err)
		}
		b.Write(event)
	}
	return b.String()
}

// TestSkippedTestsHaveTheirReasons in the results.
func TestSkippedTestsHaveTheirReasons(t *testing.T) {
	wine, err := read(strings.NewReader(events("a", "pass TestA", "output TestB:     a_test.go:7: no sockets\n",
		"output TestB: --- SKIP: TestB (0.00s)\n", "skip TestB", "skip TestC/sub", "pass")))
	if err != nil {
		t.Fatal(err)
	}
	r := newRow("own", "none", "tests")
	r.add("a", wine[module+"a"])
	want := map[string]string{"a TestB": "skipped: no sockets", "a TestC/sub": "skipped: no reason"}
	if r.Passed != 1 || !maps.Equal(r.Tests, want) || !maps.Equal(r.Skipped, map[string]int{"no sockets": 1, "no reason": 1}) {
		t.Errorf("got %+v", r)
	}
}

func TestOnlyCompleteRunsPass(t *testing.T) {
	const sane = "output TestSanity:     sanity_test.go:169: links of Windows: 92 specs passed, 10 do not apply\n"
	const memory = "output TestSanity:     sanity_test.go:169: volumes in memory: 101 specs passed, 1 do not apply\n"
	const images = "output TestSanity:     sanity_test.go:169: real mounts, images: 92 specs passed, 10 do not apply\n"
	const also = "output TestSanity: \x1b[32mSUCCESS!\x1b[0m -- \x1b[32m92 Passed\x1b[0m | \x1b[31m0 Failed\x1b[0m | " +
		"1 Pending | \x1b[36m10 Skipped\x1b[0m\n"
	linux, d := events("d", sane, memory, images, "pass TestSanity", "pass"), events("d", sane, "pass TestSanity", "pass")
	a := events("a", "pass TestA/sub", "pass TestA", "skip TestB", "pass")
	for name, tc := range map[string]struct{ wine, linux, want string }{
		"all is well":       {a + events("d", sane, memory, also, "pass TestSanity", "pass"), linux, ""},
		"nothing":           {"", linux, "a: it did not run to its end"},
		"no end":            {events("a", "pass TestA") + d, linux, "a: it did not run"},
		"a test failed":     {events("a", "fail TestA", "fail") + d, linux, "failed: TestA"},
		"a failed process":  {events("a", "pass TestA", "fail") + d, linux, "a: failed"},
		"all tests skipped": {events("a", "skip TestA", "pass") + d, linux, "a: no test passed"},
		"only a subtest":    {events("a", "pass TestA/sub", "pass") + d, linux, "a: no test passed"},
		"no csi-sanity":     {a + events("d", "pass TestSanity", "pass"), linux, "did not run under Wine"},
		"not the links":     {a + events("d", memory, "pass TestSanity", "pass"), linux, "did not run under Wine"},
		"one more is skipped": {
			a + events("d", strings.ReplaceAll(sane, "10 do", "11 do"), "pass TestSanity", "pass"), linux,
			`92 specs passed and 11 were skipped, on Linux "92" and "10"`},
		"one less passed": {a + events("d", strings.ReplaceAll(sane, "92", "91"), "pass TestSanity", "pass"), linux, "91 specs"},
		"no spec passed": {a + events("d", strings.ReplaceAll(sane, "92", "0"), "pass TestSanity", "pass"),
			strings.ReplaceAll(linux, "92", "0"), "0 specs"},
		"unknown on Linux": {a + events("d", sane, memory, "pass TestSanity", "pass"),
			d, "volumes in memory"},
		"Linux failed": {a + d, events("d", sane, "fail TestSanity", "fail"),
			"failed on Linux"},
		"Linux did not run": {a + d, "", "failed on Linux"},
	} {
		t.Run(name, func(t *testing.T) {
			wine, err := read(strings.NewReader(tc.wine))
			if err != nil {
				t.Fatal(err)
			}
			on, err := read(strings.NewReader(tc.linux))
			if err != nil {
				t.Fatal(err)
			}
			err = judge([]string{"a", "d"}, wine, on[module+"d"])
			if tc.want == "" && err != nil {
				t.Error(err)
			} else if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if want := "92 Passed | 0 Failed | 1 Pending | 10 Skipped"; tc.want == "" && wine[module+"d"].summary != want {
				t.Errorf("summary %q, want %q", wine[module+"d"].summary, want)
			}
		})
	}
}
