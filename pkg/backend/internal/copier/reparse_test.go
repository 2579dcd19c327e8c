package copier

import (
	"encoding/binary"
	"slices"
	"testing"
)

// link is a REPARSE_DATA_BUFFER.
func link(tag uint32, name string) []byte {
	body := append(make([]byte, 12), encode(name)...)
	data := binary.LittleEndian.AppendUint32(nil, tag)
	data = binary.LittleEndian.AppendUint16(data, uint16(len(body)))
	return append(append(data, 0, 0), body...)
}

func TestCheckLink(t *testing.T) {
	for name, tc := range map[string]struct {
		data []byte
		ok   bool
	}{
		"a symbolic link":             {link(tagSymlink, `\??\C:\x`), true},
		"a symbolic link to a server": {link(tagSymlink, `\??\UNC\host\share`), true},
		"a junction":                  {link(tagMountPoint, `\??\C:\Volume{x`), true},
		"a mounted volume":            {link(tagMountPoint, `\??\Volume{0123}\`), false},
		"a deduplicated file":         {link(0x80000013, ""), false},
		"cut off":                     {link(tagSymlink, "")[:7], false},
		"nothing":                     {nil, false},
	} {
		if err := checkLink(tc.data); (err == nil) != tc.ok {
			t.Errorf("%s: %v, want an error: %t", name, err, !tc.ok)
		}
	}
}

// streamList is a list of FILE_STREAM_INFO.
func streamList(names ...string) (data []byte) {
	for i, name := range names {
		text := encode(name)
		next := (24 + len(text) + 7) &^ 7
		entry := make([]byte, next)
		if i < len(names)-1 {
			binary.LittleEndian.PutUint32(entry, uint32(next))
		}
		binary.LittleEndian.PutUint32(entry[4:], uint32(len(text)))
		copy(entry[24:], text)
		data = append(data, entry...)
	}
	return data
}

func TestParseStreams(t *testing.T) {
	want := []string{"::$DATA", ":Zone.Identifier:$DATA", ":ü:$DATA"}
	data := append(streamList(want...), make([]byte, 100)...)
	if got, err := parseStreams(data); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	back := streamList(want...)
	binary.LittleEndian.PutUint32(back, 8)
	odd := streamList(want...)
	odd[4]++
	for name, data := range map[string][]byte{"nothing": nil, "cut off": streamList(want...)[:50], "an offset back": back,
		"half a character": odd, "an offset after the end": streamList(want...)[:40]} {
		if got, err := parseStreams(data); err == nil {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
}

func FuzzParseStreams(f *testing.F) {
	f.Add(streamList("::$DATA", ":x:$DATA"))
	f.Fuzz(func(_ *testing.T, data []byte) { parseStreams(data) })
}
