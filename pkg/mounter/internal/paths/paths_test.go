package paths

import (
	"path/filepath"
	"strings"
	"testing"
)

func FuzzBelow(f *testing.F) {
	for _, p := range []string{"/k/a", "/k/../a", "/k", "/ka", "/k/a/../../b", "k/a", "/k//a", "/k/a\x00"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		rel, err := Below("/k", p)
		if err == nil &&
			(filepath.Join("/k", rel) != p || !strings.HasPrefix(p, "/k/") || strings.Contains("/"+rel+"/", "/../")) {
			t.Errorf("below(%q) = %q", p, rel)
		}
	})
}
