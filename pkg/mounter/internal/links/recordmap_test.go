package links

import (
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// groupsOf fails the test unless the records of each source are at the paths, and no other group
// takes memory.
func groupsOf(t *testing.T, rs *linkRecords, want map[string][]string) {
	t.Helper()
	for source, paths := range want {
		var got []string
		for _, r := range rs.withSource(source) {
			got = append(got, r.Path)
		}
		if slices.Sort(got); !slices.Equal(got, paths) {
			t.Errorf("records of %s: got %q, want %q", source, got, paths)
		}
	}
	if len(rs.byGroup) != len(want) {
		t.Errorf("got %d groups of records, want %d", len(rs.byGroup), len(want))
	}
}

func TestRecordsAreFoundByTheirSource(t *testing.T) {
	store := &modelStore{m: newModel(), files: map[string][]byte{}}
	load := func() *linkRecords {
		rs, err := loadLinkRecords(store, WindowsPaths)
		if err != nil {
			t.Fatal(err)
		}
		return rs
	}
	rs := load()
	for path, source := range map[string]string{`C:\one`: `C:\a`, `C:\two`: `C:\A`, `C:\three`: `C:\b`} {
		if err := rs.put(linkRecord{Path: path, Kind: mounter.Directory, Source: source}); err != nil {
			t.Fatal(err)
		}
	}
	groupsOf(t, rs, map[string][]string{`C:\a`: {`C:\one`, `C:\two`}, `C:\b`: {`C:\three`}})

	t.Run("a record that gets another source", func(t *testing.T) {
		if err := rs.put(linkRecord{Path: strings.ToUpper(`c:\three`), Kind: mounter.Directory, Source: `C:\a`}); err != nil {
			t.Fatal(err)
		}
		groupsOf(t, rs, map[string][]string{`C:\a`: {`C:\THREE`, `C:\one`, `C:\two`}})
	})
	t.Run("a removed record", func(t *testing.T) {
		if err := rs.remove(`C:\one`); err != nil {
			t.Fatal(err)
		}
		groupsOf(t, rs, map[string][]string{`C:\a`: {`C:\THREE`, `C:\two`}})
	})
	t.Run("after a restart", func(t *testing.T) {
		groupsOf(t, load(), map[string][]string{`C:\a`: {`C:\THREE`, `C:\two`}})
	})
}
