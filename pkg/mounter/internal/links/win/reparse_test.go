package win

import (
	"encoding/binary"
	"testing"
	"unicode/utf16"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// reparsePoint returns the data of a symbolic link or of a mount point.
func reparsePoint(tag uint32, substitute, display string) []byte {
	var names []byte
	add := func(s string) (at, n int) {
		at = len(names)
		for _, u := range utf16.Encode([]rune(s)) {
			names = binary.LittleEndian.AppendUint16(names, u)
		}
		return at, len(names) - at
	}
	displayAt, displayLen := add(display) // the print name often comes first
	at, n := add(substitute)
	var body []byte
	for _, v := range []int{at, n, displayAt, displayLen} {
		body = binary.LittleEndian.AppendUint16(body, uint16(v))
	}
	if tag == tagSymlink {
		body = binary.LittleEndian.AppendUint32(body, 0)
	}
	body = append(body, names...)
	data := binary.LittleEndian.AppendUint32(nil, tag)
	data = binary.LittleEndian.AppendUint16(data, uint16(len(body)))
	return append(append(data, 0, 0), body...)
}

func TestParseReparse(t *testing.T) {
	for name, tc := range map[string]struct {
		tag        uint32
		substitute string
		isDir      bool
		text       string
		kind       links.EntryKind
	}{
		"a link to a directory":       {tagSymlink, `\??\D:\causeway\v`, true, `D:\causeway\v`, links.DirLink},
		"a link to a share":           {tagSymlink, `\??\UNC\srv\share\sub\`, true, `\\srv\share\sub\`, links.DirLink},
		"a relative link":             {tagSymlink, `..\x`, true, `..\x`, links.DirLink},
		"a link to a file":            {tagSymlink, `\??\D:\file`, false, `D:\file`, links.OtherLink},
		"a junction":                  {tagMountPoint, `\??\D:\x`, true, `D:\x`, links.OtherLink},
		"a mount point of a volume":   {tagMountPoint, `\??\Volume{01234567-89ab-cdef-0123-456789abcdef}\`, true,
			`Volume{01234567-89ab-cdef-0123-456789abcdef}\`, links.PlainDir},
		"an unknown link":             {0xA0000027, "", true, "", links.OtherLink},
		"a deduplicated file":         {0x80000013, "", false, "", links.PlainFile},
		"a directory of a cloud file": {0x9000001A, "", true, "", links.PlainDir},
	} {
		tag, text, err := parseReparse(reparsePoint(tc.tag, tc.substitute, "another"))
		if tag != tc.tag || text != tc.text || err != nil {
			t.Errorf("%s: got %#x, %q, %v, want %#x, %q", name, tag, text, err, tc.tag, tc.text)
		}
		if got := kindOf(tc.isDir, true, tag, text); got != tc.kind {
			t.Errorf("%s: got %v, want %v", name, got, tc.kind)
		}
	}
	if dir, file := kindOf(true, false, 0, ""), kindOf(false, false, 0, ""); dir != links.PlainDir ||
		file != links.PlainFile {
		t.Errorf("got %v and %v, want a directory and a file", dir, file)
	}
}

func FuzzParseReparse(f *testing.F) {
	f.Add(reparsePoint(tagSymlink, `\??\C:\x`, `C:\x`))
	f.Add(reparsePoint(tagMountPoint, `\??\C:\x`, ""))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, text, err := parseReparse(data); err != nil && text != "" || len(text) > 4*len(data) {
			t.Errorf("got %q, %v", text, err)
		}
	})
}
