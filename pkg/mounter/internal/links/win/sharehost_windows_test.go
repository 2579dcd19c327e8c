package win

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

func TestProbeOfWindows(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := windowsShares{}
	if err := h.Probe(dir + `\`); err != nil {
		t.Errorf("a directory: %v", err)
	}
	if err := h.Probe(filepath.Join(dir, "missing") + `\`); !errors.Is(err, fs.ErrNotExist) ||
		!errors.Is(links.Classify(err), mounter.ErrNotFound) {
		t.Errorf("a missing directory: %v", err)
	}
	var code links.WindowsCode
	if err := h.Probe(file); !errors.As(err, &code) {
		t.Errorf("a file: %v, want a code", err)
	}
	if _, err := h.ShareUsage(filepath.Join(dir, "missing") + `\`); !errors.As(err, &code) {
		t.Errorf("usage of a missing directory: %v, want a code", err)
	}
}

func TestLongPathsOfShares(t *testing.T) {
	name := strings.Repeat("n", 240)
	if got := long(`\\srv\share\` + name + `\`); got != `\\?\UNC\srv\share\`+name+`\` {
		t.Errorf("got %q", got)
	}
	if got := long(`\\srv\share\`); got != `\\srv\share\` {
		t.Errorf("got %q", got)
	}
}
