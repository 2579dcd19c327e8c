package hostpath

import (
	"flag"
	"slices"
	"strings"
	"testing"
)

const someRoot = "2b1e63f6-5b8b-4f0c-9d0b-0f3c4c0f4a11"

// TestLostRootsFlag: an empty list must not contain the empty UUID.
func TestLostRootsFlag(t *testing.T) {
	for args, want := range map[string][]string{"": nil, "--lost-roots=": nil,
		"--lost-roots=" + strings.ToUpper(someRoot): {someRoot}} {
		var f Flags
		set := flag.NewFlagSet("", flag.ContinueOnError)
		f.Declare(set)
		if err := set.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(f.Lost, want) || f.Init || f.Adopt {
			t.Errorf("%q: got %+v, want %q", args, f, want)
		}
	}
}
