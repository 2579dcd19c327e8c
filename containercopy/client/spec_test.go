package client

import (
	"errors"
	"strings"
	"testing"
)

func TestParseSpec(t *testing.T) {
	for arg, want := range map[string]Spec{
		"pod:/a": {Pod: "pod", Path: "/a"}, "ns/pod:/a": {"pod", "ns", "/a"}, "web-0.x:/": {Pod: "web-0.x", Path: "/"},
		"pod:/a:b": {Pod: "pod", Path: "/a:b"}, "a/b": {Path: "a/b"}, "./a:b": {Path: "./a:b"}, "/a:b": {Path: "/a:b"},
		"../a:/b": {Path: "../a:/b"}, "-": {Path: "-"}, "a": {Path: "a"}, "c:/x": {Pod: "c", Path: "/x"}, ".": {Path: "."},
		"pod:/ a": {Pod: "pod", Path: "/ a"}, "ns/p:/-": {"p", "ns", "/-"},
	} {
		if got, err := ParseSpec(arg, false); err != nil || got != want {
			t.Errorf("%q = %+v, %v, want %+v", arg, got, err, want)
		}
	}
	for _, arg := range []string{"", ":", ":/a", "pod:", "pod:a", "Pod:/a", "ns/:/a", "/pod\x00", "a/b/c:/d", "NS/pod:/a", "ns//pod:/a",
		"-pod:/a", "pod-:/a", strings.Repeat("x", 254) + ":/a", strings.Repeat("n", 64) + "/p:/a", "pod:../a"} {
		if got, err := ParseSpec(arg, false); !errors.Is(err, ErrUsage) {
			t.Errorf("%q = %+v, %v, want ErrUsage", arg, got, err)
		}
	}
	for arg, want := range map[string]Spec{
		`C:\x`: {Path: `C:\x`}, "c:/x": {Path: "c:/x"}, "ns/c:/x": {"c", "ns", "/x"}, "pod:/x": {Pod: "pod", Path: "/x"},
		`.\a:b`: {Path: `.\a:b`}, `\\server\share`: {Path: `\\server\share`},
	} {
		if got, err := ParseSpec(arg, true); err != nil || got != want {
			t.Errorf("on Windows %q = %+v, %v, want %+v", arg, got, err, want)
		}
	}
}

func TestParseSpecs(t *testing.T) {
	if from, to, err := ParseSpecs("pod:/a", "-", false); err != nil || from.Pod != "pod" || !to.Stdio() || from.Stdio() {
		t.Errorf("%+v, %+v, %v", from, to, err)
	}
	for _, args := range [][2]string{{"a", "b"}, {"p:/a", "q:/b"}, {"", "p:/a"}, {"a", "p:b"}} {
		if from, to, err := ParseSpecs(args[0], args[1], false); !errors.Is(err, ErrUsage) {
			t.Errorf("%q: %+v, %+v, %v, want ErrUsage", args, from, to, err)
		}
	}
}

// FuzzParseSpec: an argument is an error of usage, a local path as it is, or a pod with valid names
// and an absolute path, which has one form as an argument.
func FuzzParseSpec(f *testing.F) {
	for _, arg := range []string{"pod:/a", "ns/pod:/a:b", "./a:b", "c:/x", "-", "\x00", "a/b/c:/d", `\\server\share`} {
		f.Add(arg, false)
		f.Add(arg, true)
	}
	f.Fuzz(func(t *testing.T, arg string, windows bool) {
		s, err := ParseSpec(arg, windows)
		switch {
		case err != nil:
			if !errors.Is(err, ErrUsage) {
				t.Errorf("%q: %v, want ErrUsage", arg, err)
			}
		case s.Local():
			if s != (Spec{Path: arg}) {
				t.Errorf("%q = %+v", arg, s)
			}
		default:
			if !podForm.MatchString(s.Pod) || s.Namespace != "" && !namespaceForm.MatchString(s.Namespace) ||
				!strings.HasPrefix(s.Path, "/") || strings.Contains(s.Path, "\x00") {
				t.Errorf("%q = %+v", arg, s)
			}
			back := s.Pod + ":" + s.Path
			if s.Namespace != "" {
				back = s.Namespace + "/" + back
			}
			if back != arg {
				t.Errorf("%q = %+v, which is %q", arg, s, back)
			}
		}
	})
}
