package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/beneath"
)

// TestADamagedStagingRecordAffectsOnlyItsPath replaces the file of a record, and the file that is
// renamed to it. Opening a FIFO without O_NONBLOCK would wait forever: then the deadline of the
// test ends it.
func TestADamagedStagingRecordAffectsOnlyItsPath(t *testing.T) {
	want := stagingRecord{VolumeID: "v", Capability: volumeCapability{mode: sharedMode}.digest()}
	mounted := func(string) (bool, error) { return true, nil }
	for name, tc := range map[string]struct {
		put   func(path string) error
		stays bool
	}{
		"FIFO":            {func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		"link":            {func(path string) error { return os.Symlink("/dev/zero", path) }, false},
		"empty directory": {func(path string) error { return os.Mkdir(path, 0o700) }, false},
		"directory": {func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "x"), nil, 0o600))
		}, true},
	} {
		for _, suffix := range []string{"", ".new"} {
			t.Run(name+suffix, func(t *testing.T) {
				state := t.TempDir()
				s, err := openStagingRecords(state, "", mounted, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.put("/good", want); err != nil {
					t.Fatal(err)
				}
				obstacle := filepath.Join(state, stagingRecordsDir, fileOf("/bad")+suffix)
				if err := errors.Join(s.dir.Close(), tc.put(obstacle)); err != nil {
					t.Fatal(err)
				}
				reported := 0
				if s, err = openStagingRecords(state, "", mounted, func(error) { reported++ }); err != nil {
					t.Fatal(err)
				}
				defer s.dir.Close()
				if got, ok := s.recordAt("/good"); !ok || got != want {
					t.Errorf("the good record is %+v, %v", got, ok)
				}
				if _, ok := s.recordAt("/bad"); ok || (reported > 0) != tc.stays {
					t.Errorf("the bad record exists: %v, reported %d times", ok, reported)
				}
				if _, err := os.Lstat(obstacle); (err == nil) != tc.stays {
					t.Errorf("the obstacle stays: %v, want %v", err == nil, tc.stays)
				}
				if _, err := s.put("/bad", want); (err != nil) != tc.stays {
					t.Errorf("put = %v", err)
				}
			})
		}
		t.Run(name+" that comes later", func(t *testing.T) {
			state := t.TempDir()
			s, err := openStagingRecords(state, "", mounted, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.dir.Close()
			if err := tc.put(filepath.Join(state, stagingRecordsDir, fileOf("/bad")+".new")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.put("/bad", want); (err != nil) != tc.stays {
				t.Errorf("put = %v", err)
			}
			if got, err := s.dir.Lstat(fileOf("/bad")); !tc.stays && (err != nil || !got.Mode().IsRegular()) {
				t.Errorf("the file is %v, %v", got, err)
			}
		})
	}
	state := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(state, stagingRecordsDir), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStagingRecords(state, "", mounted, nil); !errors.Is(err, beneath.ErrType) {
		t.Errorf("a FIFO instead of the directory: %v, want ErrType", err)
	}
}
