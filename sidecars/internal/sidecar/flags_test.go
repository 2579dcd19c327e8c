package sidecar

import (
	"errors"
	"flag"
	"strings"
	"testing"
	"time"
)

// pair are two toys; the first has workers, which were called threads.
func pair() (red, blue *toy) {
	return &toy{name: "red", workers: 5, old: []string{"threads"}}, &toy{name: "blue"}
}

func TestFlagsReachTheirControllers(t *testing.T) {
	for _, c := range []struct {
		name, args string
		red, blue  time.Duration
		workers    int
		loud       bool // red
	}{
		{name: "nothing said leaves each its own default", red: 10 * time.Second, blue: 10 * time.Second, workers: 5},
		{name: "without a prefix it is for all", args: "--timeout=3s", red: 3 * time.Second, blue: 3 * time.Second,
			workers: 5},
		{name: "a prefix narrows it", args: "--red-timeout=3s", red: 3 * time.Second, blue: 10 * time.Second,
			workers: 5},
		{name: "a prefix wins when it comes first", args: "--red-timeout=3s --timeout=4s", red: 3 * time.Second,
			blue: 4 * time.Second, workers: 5},
		{name: "a prefix wins when it comes last", args: "--timeout=4s --red-timeout=3s", red: 3 * time.Second,
			blue: 4 * time.Second, workers: 5},
		{name: "a prefix wins though it says the default", args: "--timeout=4s --red-timeout=10s",
			red: 10 * time.Second, blue: 4 * time.Second, workers: 5},
		{name: "the last of one spelling wins", args: "--timeout=4s --timeout=5s", red: 5 * time.Second,
			blue: 5 * time.Second, workers: 5},
		{name: "one dash is as good as two", args: "-timeout=4s", red: 4 * time.Second, blue: 4 * time.Second,
			workers: 5},
		{name: "a value may be a word of its own", args: "--timeout 4s", red: 4 * time.Second, blue: 4 * time.Second,
			workers: 5},
		{name: "an old spelling works with a prefix", args: "--red-threads=7", red: 10 * time.Second,
			blue: 10 * time.Second, workers: 7},
		{name: "an old spelling works without", args: "--threads=7", red: 10 * time.Second, blue: 10 * time.Second,
			workers: 7},
		{name: "a bool needs no value", args: "--loud --red-workers=2", red: 10 * time.Second, blue: 10 * time.Second,
			workers: 2, loud: true},
		{name: "a bool with a prefix needs none either", args: "--red-loud --timeout=1s", red: time.Second,
			blue: time.Second, workers: 5, loud: true},
		{name: "a bool can be taken back for one", args: "--loud --red-loud=false", red: 10 * time.Second,
			blue: 10 * time.Second, workers: 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			red, blue := pair()
			if _, err := command(nil, red, blue).parse(strings.Fields(c.args)); err != nil {
				t.Fatal(err)
			}
			if red.timeout != c.red || blue.timeout != c.blue || red.workers != c.workers || red.loud != c.loud {
				t.Errorf("red has %v, %d workers, loud %t, and blue %v", red.timeout, red.workers, red.loud,
					blue.timeout)
			}
		})
	}
}

func TestInvalidFlagsAreRejected(t *testing.T) {
	for _, c := range []struct{ name, args, want string }{
		{"one that nobody has", "--nonsense=1", "there is no flag --nonsense (help lists all)"},
		{"a letter is wrong", "--timout=1s", "there is no flag --timout: is --timeout meant?"},
		{"a letter is wrong behind a prefix", "--red-workrs=1", "is --red-workers meant?"},
		{"a prefix before one for all", "--red-csi-address=/x", "--csi-address is one for the whole process"},
		{"of one that is off", "--controllers=blue --red-timeout=1s", "--red-timeout is set, but red is off"},
		{"an old spelling of one that is off", "--controllers=blue --red-threads=1",
			"--red-threads is set, but red is off"},
		{"for all, but of one only, which is off", "--controllers=blue --workers=1", "it is a flag of red only"},
		{"a value that is not one", "--timeout=soon", "--timeout=soon for red"},
		{"a value that is not one behind a prefix", "--red-timeout=soon", `invalid value "soon"`},
		{"a word that is no flag", "--timeout=1s more", `"more" is neither a flag nor the value of one`},
		{"a word behind a bool is no value of it", "--loud false", `"false" is neither`},
		{"metrics where health is", "--metrics-path=/healthz/x", `--metrics-path "/healthz/x"`},
		{"metrics that do not begin with a slash", "--metrics-path=metrics", "must begin with /"},
		{"both names of the port", "--http-endpoint=:1 --metrics-address=:1", "set only --http-endpoint"},
		{"no socket", "--csi-address=", "--csi-address is empty"},
		{"negative patience", "--shutdown-timeout=-1s", "must not be negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			red, blue := pair()
			_, err := command(nil, red, blue).parse(strings.Fields(c.args))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestHelpIsPrintedForEachOfItsFlags(t *testing.T) {
	for _, arg := range []string{"-h", "--help"} {
		red, blue := pair()
		if _, err := command(nil, red, blue).parse([]string{arg}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s: got %v", arg, err)
		}
	}
}

func TestAControllersOwnCheckNamesIt(t *testing.T) {
	red, blue := pair()
	red.invalid = errors.New("too red")
	if _, err := command(nil, red, blue).parse(nil); err == nil || err.Error() != "red: too red" {
		t.Errorf("got %v", err)
	}
	if _, err := command(nil, red, blue).parse([]string{"--controllers=blue"}); err != nil {
		t.Errorf("it is off, but: %v", err)
	}
}

// asker keeps its flags for queries.
type asker struct {
	toy
	flags *Flags
}

func (a *asker) Flags(f *Flags) {
	a.flags = f
	a.toy.Flags(f)
}

func TestTheRecordedMessages(t *testing.T) {
	for _, c := range []struct {
		name, args string
		said, here bool
	}{
		{name: "nothing"},
		{name: "for all", args: "--timeout=1s", said: true},
		{name: "for this one", args: "--red-timeout=1s", said: true, here: true},
		{name: "for both", args: "--timeout=1s --red-timeout=2s", said: true, here: true},
		{name: "for another", args: "--blue-timeout=1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			red := &asker{toy: toy{name: "red"}}
			command := &Command{Controllers: []Controller{red, &toy{name: "blue"}}}
			if _, err := command.parse(strings.Fields(c.args)); err != nil {
				t.Fatal(err)
			}
			if said, here := red.flags.Said("timeout"), red.flags.SaidHere("timeout"); said != c.said ||
				here != c.here {
				t.Errorf("said %t, here %t", said, here)
			}
			if err := red.flags.Need("more", "timeout"); (err != nil) != c.said {
				t.Errorf("needed: %v", err)
			}
		})
	}
}

func TestDistanceCountsChangedLetters(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "", 3}, {"", "ab", 2}, {"timout", "timeout", 1}, {"abc", "axc", 1}, {"ab",
		"ba", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestAnExactNameWinsOverAnotherFlagsOldSpelling(t *testing.T) {
	a, b := &toy{name: "a", workers: 1, old: []string{"threads"}}, &toy{name: "b", workers: 1}
	c := command(nil, a, b)
	if _, err := c.parse([]string{"--threads=20", "--workers=5"}); err != nil {
		t.Fatal(err)
	}
	if a.workers != 5 || b.workers != 5 {
		t.Errorf("a has %d, b has %d", a.workers, b.workers)
	}
}
