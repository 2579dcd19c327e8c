package smb

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/parallel"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/lease"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// world is a private server with a directory for the volumes of a test, and a file of shares that
// names it.
type world struct {
	testing.TB
	*smbtest.Server // nil in a guest, whose server is outside
	address         string
	user, password  string
	dir             string // of the source, on the share
	shares          string
	krb5Conf        string
	life            time.Duration
	lease           time.Duration // 0: a third of life
}

func TestMain(m *testing.M) {
	host.Main()
	parallel.Tests()
	os.Exit(m.Run())
}

// newWorld makes an empty directory on a share.
func newWorld(t testing.TB, s *smbtest.Server, share string) *world {
	t.Helper()
	w := &world{TB: t, Server: s, address: fmt.Sprint("127.0.0.1:", s.Port), user: s.User, password: s.Password,
		krb5Conf: "/etc/krb5.conf", life: lease.Life}
	dir, err := os.MkdirTemp(filepath.Join(s.Dir, share), "w")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.dir = share + "/" + filepath.Base(dir)
	w.writeShares()
	return w
}

// newRemoteWorld makes a directory on a share of a server outside of the guest that runs the test.
func newRemoteWorld(t testing.TB, r *smbtest.Remote, dir string) *world {
	t.Helper()
	w := &world{TB: t, address: r.Address, user: r.User, password: r.Password, life: lease.Life,
		dir: smbtest.Share + "/" + dir}
	if err := r.Do("mkdir/"+w.dir, ""); err != nil {
		t.Fatal(err)
	}
	w.writeShares()
	return w
}

// writeShares writes the file of shares.
func (w *world) writeShares() {
	w.Helper()
	w.shares = w.file("shares.yaml", fmt.Sprintf("shares:\n- {source: %q, credentials: %q}\n", w.source(),
		w.credentials(w.user, w.password)))
}

// file writes a file outside of the share and returns its path.
func (w *world) file(name, content string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

// credentials writes a directory of credentials.
func (w *world) credentials(user, password string) string {
	w.Helper()
	return w.credentialFiles(map[string]string{userKey: user, passwordKey: password})
}

func (w *world) credentialFiles(files map[string]string) string {
	w.Helper()
	dir := w.TempDir()
	for key, content := range files {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(content), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	return dir
}

// source is the source of a class.
func (w *world) source() string { return "//" + w.address + "/" + w.dir }

// secrets are the secrets of a call.
func (w *world) secrets() map[string]string {
	return map[string]string{userKey: w.user, passwordKey: w.password}
}

// open opens a backend, like a process, and closes it with the test.
func (w *world) open() *Backend {
	w.Helper()
	return w.openOn(nil)
}

// openOn is open on a node.
func (w *world) openOn(images mounter.Images) *Backend {
	w.Helper()
	process := lease.NewProcess("test", nil)
	process.Life, process.Lease = w.life, cmp.Or(w.lease, w.life/3)
	b, err := New(Config{Shares: w.shares, Krb5Conf: w.krb5Conf, Images: images, process: process,
		Report: func(err error) { w.Log(err) }})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { b.Close() })
	return b
}

// path returns the path on this machine of a path in the source.
func (w *world) path(elements ...string) string {
	return filepath.Join(append([]string{w.Dir, w.dir}, elements...)...)
}

// TestSMBKeepsTheContract runs the suite of the contract against a private server.
func TestSMBKeepsTheContract(t *testing.T) {
	s := smbtest.Serve(t)
	source := ""
	kind := backendtest.Kind{
		Parameters: map[string]string{sourceKey: ""},
		Mutable:    map[string][2]string{onDeleteKey: {records.RetainData, records.ArchiveData}},
		Files: func(m mounter.Mount) string {
			src, err := mounter.ParseShare(m.Source)
			if err != nil {
				t.Fatal(err)
			}
			return filepath.Join(s.Dir, src.Share, src.Path)
		},
	}
	backendtest.Run(t, kind, func(t *testing.T, _ mounter.Images) func() backend.Backend {
		w := newWorld(t, s, smbtest.Share)
		source = w.source()
		kind.Parameters[sourceKey] = source
		return func() backend.Backend { return w.open() }
	})
}

// parsed is the parsed source.
func (w *world) parsed() mounter.ShareSource {
	w.Helper()
	s, err := parseSource(w.source())
	if err != nil {
		w.Fatal(err)
	}
	return s
}
