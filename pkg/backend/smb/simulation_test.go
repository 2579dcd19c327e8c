package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/sharesim"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// site is a server with the source of a class, and the view of a person at the server. Paths are
// below the source.
type site interface {
	testing.TB
	source() string
	exists(path ...string) bool
	read(path ...string) string
	write(content string, path ...string) // makes the directories of the file, too
	removeAll(path ...string)
	paths() []string // of all files and directories, sorted
}

// simulation is a simulated server in a synctest bubble.
type simulation struct {
	*testing.T
	server *sharesim.Server
	shares string // path of the file of shares
}

// simulationDir is the source, on the share.
const simulationDir = "vols"

// simulate runs a test on a simulated server, in a bubble.
func simulate(t *testing.T, test func(w *simulation)) {
	t.Helper()
	shares := filepath.Join(t.TempDir(), "shares.yaml")
	if err := os.WriteFile(shares, []byte("shares:\n- {source: //server/share/vols, guest: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		test(&simulation{T: t, server: sharesim.NewServer(simulationDir), shares: shares})
	})
}

// process starts a process of the driver, with the constants of the product, and ends it with the
// test.
func (w *simulation) process() (*Backend, *sharesim.Process) {
	w.Helper()
	p := sharesim.NewProcess(w.server, "process", sharesim.Faults{Latency: 10 * time.Millisecond}, 1)
	b, err := New(Config{Shares: w.shares, Report: func(err error) { w.Log(err) }, process: lease.NewProcess("test", p),
		openShare: func(context.Context, mounter.ShareSource, client.Login, client.Use) (share, error) {
			return p, nil
		}})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		p.Resume()
		p.Kill()
		b.Close()
	})
	return b, p
}

// open is process for a test that interrupts nothing.
func (w *simulation) open() *Backend {
	w.Helper()
	b, _ := w.process()
	return b
}

func (w *simulation) source() string { return "//server/share/" + simulationDir }

func (w *simulation) parsed() mounter.ShareSource {
	return mounter.ShareSource{Server: "server", Share: "share", Path: simulationDir}
}

func (w *simulation) path(elements ...string) string {
	return path.Join(append([]string{simulationDir}, elements...)...)
}

func (w *simulation) exists(path ...string) bool { return w.server.Exists(w.path(path...)) }

func (w *simulation) read(path ...string) string {
	content, _ := w.server.ReadFile(w.path(path...))
	return content
}

func (w *simulation) write(content string, elements ...string) {
	w.Helper()
	p := w.path(elements...)
	if err := errors.Join(w.server.MkdirAll(path.Dir(p)), w.server.WriteFile(p, content)); err != nil {
		w.Error(err)
	}
}

func (w *simulation) removeAll(path ...string) { w.server.RemoveAll(w.path(path...)) }

func (w *simulation) paths() []string { return w.server.Paths(simulationDir) }

// moveRecord gives a volume another directory, as a person can.
func moveRecord(t testing.TB, b *Backend, source mounter.ShareSource, id, subDir string) {
	t.Helper()
	object, err := records.ParseObject(volumeid.Volume, id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.store(t.Context(), source, nil, client.Calls)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	v, err := s.records().ReadVolume(t.Context(), object)
	if err == nil {
		v.SubDir = subDir
		err = s.records().Replace(t.Context(), records.VolumesDir, records.VolumeFormat, object, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// request is a request for a volume with further parameters, in pairs.
func request(w site, name string, parameters ...string) backend.CreateOptions {
	o := backend.CreateOptions{Name: name, Required: 1 << 20, Access: []backend.Access{{}},
		Parameters: map[string]string{sourceKey: w.source()}}
	for i := 0; i < len(parameters); i += 2 {
		o.Parameters[parameters[i]] = parameters[i+1]
	}
	return o
}

// holds checks the content of a file.
func holds(w site, want string, path ...string) {
	w.Helper()
	if got := w.read(path...); got != want {
		w.Errorf("%v = %q, want %q", path, got, want)
	}
}

// below returns the paths below a directory.
func below(w site, dir string) (all []string) {
	for _, p := range w.paths() {
		if strings.HasPrefix(p, dir+"/") {
			all = append(all, p)
		}
	}
	return all
}

// delayed reports whether another process delays a call that fails with err.
func delayed(err error) bool {
	return errors.Is(err, backend.ErrBusy) || errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrInUse)
}

// until repeats a call that another process delays, and returns its last result.
func until[T any](t testing.TB, call func() (T, error)) (v T, err error) {
	t.Helper()
	if _, simulated := t.(*simulation); simulated {
		for begin := time.Now(); time.Since(begin) < time.Hour; time.Sleep(10 * time.Second) {
			if v, err = call(); !delayed(err) {
				return v, err
			}
		}
		t.Fatalf("the call is delayed after an hour: %v", err)
	}
	await.NoError(t, "no other process delays the call", func() error {
		if v, err = call(); delayed(err) {
			return err
		}
		return nil
	})
	return v, err
}

// deleteUntil deletes a volume that another process may be changing.
func deleteUntil(t testing.TB, b *Backend, id string) {
	t.Helper()
	if _, err := until(t, func() (struct{}, error) {
		return struct{}{}, b.Delete(context.Background(), id, nil)
	}); err != nil {
		t.Fatal(err)
	}
}

// isEmpty checks that the source has neither volumes nor anything else of the driver, except for
// the directories of the store and the reserve.
func isEmpty(w site, b *Backend) {
	w.Helper()
	want := []string{".causeway", ".causeway/reserve", ".causeway/snapshots", ".causeway/trash", ".causeway/volumes",
		".causeway/work"}
	source, err := parseSource(w.source())
	if err != nil {
		w.Fatal(err)
	}
	if _, err = until(w, func() (struct{}, error) {
		err := b.emptyTrashNow(context.Background(), source, nil)
		if left := w.paths(); err == nil && !slices.Equal(left, want) {
			err = fmt.Errorf("%w: left on the share: %v", backend.ErrBusy, left)
		}
		return struct{}{}, err
	}); err != nil {
		w.Fatal(err)
	}
}

// isEmptyExceptMarkers is isEmpty, without the directory of markers: those of a process that was
// killed stay there for a day.
func isEmptyExceptMarkers(w site, b *Backend) {
	w.Helper()
	for _, p := range below(w, records.MetaDir+"/"+records.WorkDir) {
		w.removeAll(p)
	}
	isEmpty(w, b)
}
