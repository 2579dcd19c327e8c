package driver

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// pathsOf returns the paths of the records of a volume, live or not.
func pathsOf(s *stagingRecords, id string) []string {
	var paths []string
	for path, st := range s.byPath {
		if st.VolumeID == id {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

func TestStagingRecordsSurviveARestartAndDamage(t *testing.T) {
	state := t.TempDir()
	dir := filepath.Join(state, stagingRecordsDir)
	path := func(name string) string { return filepath.Join("/staging", name) }
	file := func(name string) string { return filepath.Join(dir, fileOf(path(name))) }
	mounted := func(path string) (bool, error) {
		switch filepath.Base(path) {
		case "unmounted":
			return false, nil
		case "dead":
			return false, errors.New("the server is gone")
		}
		return true, nil
	}
	open := func() *stagingRecords {
		t.Helper()
		s, err := openStagingRecords(state, "", mounted, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.dir.Close() })
		return s
	}
	s := open()
	want := stagingRecord{VolumeID: "v", Capability: volumeCapability{mode: sharedMode}.digest()}
	for _, name := range []string{"kept", "unmounted", "dead", "torn", "moved"} {
		if _, err := s.put(path(name), want); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file("kept")+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	others := map[string]string{
		filepath.Join(state, "root-identity"):                        "another file",
		filepath.Join(state, strings.Repeat("0", 32)+".json"):        "{}",
		filepath.Join(dir, "notes.json"):                             "of another program",
		filepath.Join(dir, strings.Repeat("F", 32)+".json"):          "another name",
		filepath.Join(dir, strings.Repeat("0", 32)+".json.bak.json"): "{}",
	}
	for name, content := range others {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"torn": `{"path":"`, "no volume": `{"path":"/staging/no volume","use":"00112233445566778899aabbccddeeff"}`,
		"no capability": `{"path":"/staging/no capability","volumeID":"v"}`,
		"long":          strings.Repeat(" ", maxStagingRecord+1),
	} {
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(file("moved"), filepath.Join(dir, strings.Repeat("0", 32)+".json")); err != nil {
		t.Fatal(err)
	}

	s = open()
	if got, ok := s.recordAt(path("kept")); !ok || got != want {
		t.Errorf("kept is %+v, %v, want %+v", got, ok, want)
	}
	if got, want := pathsOf(s, "v"), []string{path("dead"), path("kept")}; !slices.Equal(got, want) {
		t.Errorf("v is staged at %v, want %v", got, want)
	}
	if got := s.liveOf("v"); len(got) != 1 || got[path("kept")] == 0 {
		t.Errorf("v is mounted at %v, want %s", got, path("kept"))
	}
	if exists(file("kept") + ".new") {
		t.Error("a file that was never committed is left")
	}
	for name, content := range others {
		if got, err := os.ReadFile(name); err != nil || string(got) != content {
			t.Errorf("%s was touched: %q, %v", name, got, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.json")); err != nil || len(left) != 5 {
		t.Errorf("left are %v, %v, want two records and three other files", left, err)
	}
	if err := s.remove(path("kept")); err != nil {
		t.Fatal(err)
	}
	if s = open(); len(pathsOf(s, "v")) != 1 {
		t.Errorf("after remove: %v", pathsOf(s, "v"))
	}
}

// TestALostMountIsRememberedForTheBoot: after a boot nothing is mounted, and nothing was lost.
func TestALostMountIsRememberedForTheBoot(t *testing.T) {
	for _, tc := range []struct {
		staged, now string
		gone        bool  // the directory
		err         error // of mounted
		kept        bool
	}{
		{"first", "first", false, nil, true}, {"first", "second", false, nil, false}, {"", "first", false, nil, false},
		{"first", "", false, nil, false}, {"", "", false, nil, false}, {"first", "first", true, nil, false},
		{"first", "first", false, mounter.ErrPath, false},
	} {
		state, path := t.TempDir(), t.TempDir()
		if tc.gone {
			path += "/gone"
		}
		open := func(boot string) *stagingRecords {
			t.Helper()
			s, err := openStagingRecords(state, boot, func(string) (bool, error) { return false, tc.err },
				func(err error) { t.Error(err) })
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open(tc.staged)
		if _, err := s.put(path, stagingRecord{VolumeID: "v",
			Capability: volumeCapability{mode: sharedMode}.digest()}); err != nil {
			t.Fatal(err)
		}
		s.dir.Close()
		for range 2 { // two restarts
			s = open(tc.now)
			if _, ok := s.recordAt(path); ok != tc.kept || (len(s.lostOf("v")) > 0) != tc.kept || len(s.liveOf("v")) > 0 {
				t.Errorf("%+v: record: %t, lost: %v, live: %v", tc, ok, s.lostOf("v"), s.liveOf("v"))
			}
			s.dir.Close()
		}
	}
}

func TestAPutCanBeUndone(t *testing.T) {
	s, err := openStagingRecords(t.TempDir(), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.dir.Close() })
	old := stagingRecord{VolumeID: "v", Capability: volumeCapability{mode: sharedMode}.digest()}
	next := stagingRecord{VolumeID: "w", Capability: volumeCapability{mode: singleMode}.digest()}
	undo, err := s.put("/a", old)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.put("/a", old); err != nil || again() != nil || len(pathsOf(s, "v")) != 1 {
		t.Errorf("undo of a put without effect had an effect: %v, %v", pathsOf(s, "v"), err)
	}
	undoNext, err := s.put("/a", next)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := s.recordAt("/a"); got != next {
		t.Errorf("at = %+v, want %+v", got, next)
	}
	if err := undoNext(); err != nil || len(pathsOf(s, "v")) != 1 || len(pathsOf(s, "w")) != 0 {
		t.Errorf("after undo: %v and %v, %v", pathsOf(s, "v"), pathsOf(s, "w"), err)
	}
	if err := undo(); err != nil || len(pathsOf(s, "v")) != 0 {
		t.Errorf("after the second undo: %v, %v", pathsOf(s, "v"), err)
	}
}

func TestDigestsTellCapabilitiesApart(t *testing.T) {
	all := []volumeCapability{{mode: sharedMode}, {mode: singleMode}}
	for _, change := range []func(*volumeCapability){
		func(vc *volumeCapability) { vc.Block = true },
		func(vc *volumeCapability) { vc.FSType = "xfs" },
		func(vc *volumeCapability) { vc.Options = []string{"a", "b"} },
		func(vc *volumeCapability) { vc.Options = []string{"a b"} },
		func(vc *volumeCapability) { vc.Options = []string{`a" "b`} },
		func(vc *volumeCapability) { vc.Options = []string{"b", "a"} },
	} {
		vc := volumeCapability{mode: sharedMode}
		change(&vc)
		all = append(all, vc)
	}
	seen := map[digest]int{}
	for i, vc := range all {
		if j, ok := seen[vc.digest()]; ok {
			t.Errorf("%+v and %+v have the same digest", vc, all[j])
		}
		seen[vc.digest()] = i
	}
}
