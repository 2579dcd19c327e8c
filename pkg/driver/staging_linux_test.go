package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/beneath"
)

// TestAnObstacleAmongStagingFilesConcernsItsOwnPath puts something else in the place of one file,
// and of the one that is renamed to it. A FIFO that is opened without O_NONBLOCK hangs: the test's
// own deadline ends it then.
func TestAnObstacleAmongStagingFilesConcernsItsOwnPath(t *testing.T) {
	want := staging{VolumeID: "v", Use: use{mode: sharedMode}.digest()}
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
				s, err := openStagings(state, mounted, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.put("/good", want); err != nil {
					t.Fatal(err)
				}
				obstacle := filepath.Join(state, stagingsDir, fileOf("/bad")+suffix)
				if err := errors.Join(s.dir.Close(), tc.put(obstacle)); err != nil {
					t.Fatal(err)
				}
				reported := 0
				if s, err = openStagings(state, mounted, func(error) { reported++ }); err != nil {
					t.Fatal(err)
				}
				defer s.dir.Close()
				if got, ok := s.at("/good"); !ok || got != want {
					t.Errorf("the good one is %+v, %v", got, ok)
				}
				if _, ok := s.at("/bad"); ok || (reported > 0) != tc.stays {
					t.Errorf("the bad one is there: %v, reported %d times", ok, reported)
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
			s, err := openStagings(state, mounted, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.dir.Close()
			if err := tc.put(filepath.Join(state, stagingsDir, fileOf("/bad")+".new")); err != nil {
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
	if err := unix.Mkfifo(filepath.Join(state, stagingsDir), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStagings(state, mounted, nil); !errors.Is(err, beneath.ErrType) {
		t.Errorf("a FIFO in the place of the directory: %v, want ErrType", err)
	}
}
