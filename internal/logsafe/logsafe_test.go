package logsafe

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"unicode"
)

// hidden are characters that no log may show as they are.
func hidden() (all []rune) {
	for r := rune(0x80); r <= 0x9f; r++ {
		all = append(all, r)
	}
	return append(all, 0x7f, 0x061c, 0x200b, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e,
		0x2066, 0x2067, 0x2068, 0x2069, 0xfeff, 0xe0041)
}

// record has the fields of a log line.
type record struct {
	Msg, Text, Error string
	Raw              map[string]string
}

func TestLogsShowOnlyPrintableText(t *testing.T) {
	for _, r := range hidden() {
		text := "before " + string(r) + " after, with ü, 漢 and 🙂"
		raw, err := json.Marshal(map[string]string{"field": text})
		if err != nil {
			t.Fatal(err)
		}
		var asJSON, asText bytes.Buffer
		for _, h := range []slog.Handler{slog.NewJSONHandler(JSON(&asJSON), nil), slog.NewTextHandler(&asText, nil)} {
			slog.New(h).Info(text, "text", text, "error", errors.New(text), "raw", json.RawMessage(raw))
		}
		for format, out := range map[string]string{"JSON": asJSON.String(), "text": asText.String()} {
			if i := strings.IndexFunc(strings.TrimSuffix(out, "\n"),
				func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%U in %s: %q", r, format, out[i:])
			}
		}
		var got record
		if err := json.Unmarshal(asJSON.Bytes(), &got); err != nil {
			t.Fatalf("%U: %v: %q", r, err, asJSON.String())
		}
		for field, said := range map[string]string{"msg": got.Msg, "text": got.Text, "error": got.Error,
			"raw": got.Raw["field"]} {
			if said != text {
				t.Errorf("%U: %s is %q, want %q", r, field, said, text)
			}
		}
		if !strings.Contains(asJSON.String(), "ü, 漢 and 🙂") {
			t.Errorf("printable characters are escaped: %s", asJSON.String())
		}
	}
}

func TestTextThatIsNoUTF8(t *testing.T) {
	var out bytes.Buffer
	if n, err := JSON(&out).Write([]byte("{\"a\":\"b\xff\x9b\"}\n")); n != 12 || err != nil {
		t.Errorf("Write = %d, %v", n, err)
	}
	if got, want := out.String(), `{"a":"b\ufffd\ufffd"}`+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// broken is a writer that fails.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestAFailureIsReported(t *testing.T) {
	for _, line := range []string{"plain\n", "not plain \u202e\n"} {
		if n, err := JSON(broken{}).Write([]byte(line)); n != 0 || err == nil {
			t.Errorf("Write(%q) = %d, %v", line, n, err)
		}
	}
}
