package volumeid

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// found returns the result of a Finder for text, which it gets through wrap.
func found(t *testing.T, text string, wrap func(io.Reader) io.Reader) []string {
	t.Helper()
	var ids []string
	f := Finder{Found: func(id []byte) { ids = append(ids, string(id)) }}
	if _, err := io.Copy(&f, wrap(strings.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestAnIDIsFoundInAnyText(t *testing.T) {
	volume, group := New(Volume, "n", "v"), New(Group, "n", "g")
	whole := func(r io.Reader) io.Reader { return r }
	for name, text := range map[string]string{
		"alone":               volume,
		"in a string":         `{"volumeHandle":"` + volume + `"}`,
		"in a string of JSON": `{"a":"{\"volumeHandle\":\"` + volume + `\"}"}`,
		"after an escape":     `\n` + volume + `\t`,
		"between other IDs":   volume[:30] + volume + volume[:30],
		"after many digits":   strings.Repeat("0", 12345) + volume,
		"before many digits":  volume + strings.Repeat("0", 12345),
		"after a broken one":  volume[:56] + "-" + volume,
		"after another":       group + volume,
	} {
		for reader, wrap := range map[string]func(io.Reader) io.Reader{"whole": whole,
			"byte by byte": iotest.OneByteReader} {
			if got := found(t, text, wrap); !slices.Contains(got, volume) {
				t.Errorf("%s, %s: %q is not in %q", name, reader, volume, got)
			}
		}
	}
	for name, text := range map[string]string{
		"too short": volume[:56], "torn by a line": volume[:20] + "\n" + volume[20:], "upper case": strings.ToUpper(volume),
		"another letter": "z" + volume[1:], "nothing": "", "no letter of a kind": strings.Repeat("0", 1000),
	} {
		if got := found(t, text, whole); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAFinderFindsEveryIDOfManyInARow(t *testing.T) {
	var text strings.Builder
	text.WriteString("0") // so that no ID begins where a multiple of their length does
	var want []string
	for i := range 200 {
		id := New(Snapshot, "n", fmt.Sprint(i))
		want = append(want, id)
		text.WriteString(id)
	}
	got := found(t, text.String(), iotest.HalfReader)
	for _, id := range want {
		if !slices.Contains(got, id) {
			t.Errorf("%s is not found", id)
		}
	}
}
