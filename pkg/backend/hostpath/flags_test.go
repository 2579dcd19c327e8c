package hostpath

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
)

const someRoot = "2b1e63f6-5b8b-4f0c-9d0b-0f3c4c0f4a11"

// TestLostRootsFlag: an empty list must not contain the empty UUID.
func TestLostRootsFlag(t *testing.T) {
	t.Parallel()
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

// TestKindsFlag: each kind once, in the order of the flag.
func TestKindsFlag(t *testing.T) {
	t.Parallel()
	for args, want := range map[string][]string{"": {"directory", "image"}, "--kinds=image": {"image"},
		"--kinds=image,directory": {"image", "directory"}, "--kinds=": nil, "--kinds=file": nil, "--kinds=image,image": nil,
		"--kinds=image,": nil} {
		var f Flags
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		f.Declare(set)
		if err := set.Parse(strings.Fields(args)); (err == nil) != (want != nil) || err == nil && !slices.Equal(f.Kinds, want) {
			t.Errorf("%q: got %q and %v, want %q", args, f.Kinds, err, want)
		}
	}
}

// TestTrimIntervalFlag: 0 trims none, and a short interval would punch holes without a pause.
func TestTrimIntervalFlag(t *testing.T) {
	t.Parallel()
	for interval, ok := range map[string]bool{"0": true, "1m": true, "168h": true, "1ns": false, "59s": false} {
		var f Flags
		set := flag.NewFlagSet("", flag.ContinueOnError)
		f.Declare(set)
		if err := set.Parse([]string{"--root=" + t.TempDir(), "--trim-interval=" + interval}); err != nil {
			t.Fatal(err)
		}
		if err := f.Check("/kubelet", "/state"); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--trim-interval") {
			t.Errorf("--trim-interval=%s: %v", interval, err)
		}
	}
}
