package hostpath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

func TestDescribeReadsARecordAndChangesNothing(t *testing.T) {
	t.Parallel()
	root, id := t.TempDir(), volumeid.New(volumeid.Volume, "n", "pvc-1")
	dir := filepath.Join(root, "volumes", id)
	if _, _, err := Describe(root, id); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("without the volume: %v", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "record.json")
	for content, want := range map[string]string{`{"version":1}`: "", `{"version":`: "is no JSON"} {
		if err := os.WriteFile(record, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		path, got, err := Describe(root, id)
		if path != dir || want == "" && (err != nil || string(got) != content) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %s, %s, %v", content, path, got, err)
		}
		if left, err := os.ReadFile(record); err != nil || string(left) != content {
			t.Errorf("the record is %s, %v", left, err)
		}
	}
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(record, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, got, err := Describe(root, id); err == nil || got != nil || errors.Is(err, backend.ErrNotFound) {
		t.Errorf("of a directory in place of the record: %s, %v", got, err)
	}
	for _, bad := range []string{"", "../volumes", volumeid.New(volumeid.Snapshot, "n", "s"), id + "/.."} {
		if path, _, err := Describe(root, bad); !errors.Is(err, backend.ErrNotFound) || path != "" {
			t.Errorf("%q: %s, %v", bad, path, err)
		}
	}
}
