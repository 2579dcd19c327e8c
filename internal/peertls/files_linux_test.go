package peertls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// secretVolume lays files out as the kubelet does those of a secret: links through ..data to a
// directory that is new each time.
type secretVolume struct {
	dir   string
	times int
}

func (v *secretVolume) put(t *testing.T, c content) {
	t.Helper()
	v.times++
	fresh := fmt.Sprintf("..%d", v.times)
	if err := os.Mkdir(filepath.Join(v.dir, fresh), 0o700); err != nil {
		t.Fatal(err)
	}
	c.put(t, filepath.Join(v.dir, fresh))
	next, data := filepath.Join(v.dir, "..data_tmp"), filepath.Join(v.dir, "..data")
	if err := errors.Join(os.Symlink(fresh, next), os.Rename(next, data)); err != nil {
		t.Fatal(err)
	}
	for _, name := range names() {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.dir, name)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
}

func TestASecretVolumeIsSwapped(t *testing.T) {
	first, second := newTestCA(t, "first CA"), newTestCA(t, "second CA")
	volume := &secretVolume{dir: t.TempDir()}
	volume.put(t, first.leaf(t, node, forServers))
	id, log := open(t, volume.dir)
	s := serve(t, grpc.Creds(everySecond(id.Server(router))))
	old, young := identity(t, first.leaf(t, router, forClients)), identity(t, second.leaf(t, router, forClients))
	if _, err := s.call(old.Client(node)); err != nil {
		t.Error(err)
	}
	volume.put(t, second.leaf(t, node, forServers))
	if names, err := s.call(young.Client("")); err != nil || !slices.Equal(names, []string{node}) {
		t.Errorf("%q answered, %v", names, err)
	}
	_, err := s.call(old.Client(""))
	errorSays(t, "the old CA's", err, "wrong CA")
	volume.put(t, second.leaf(t, "node-c", forServers))
	if _, err := s.call(young.Client("node-c")); err != nil {
		t.Error(err)
	}
	s.stop()
	oneSays(t, "the server", log.takeLines(), "it refused us", "bad certificate")
}

// TestAVolumeThatIsSwappedAllTheTimeIsNeverMixed: the files that are read are of the same moment.
func TestAVolumeThatIsSwappedAllTheTimeIsNeverMixed(t *testing.T) {
	ca := newTestCA(t, "test CA")
	volume := &secretVolume{dir: t.TempDir()}
	pairs := []content{ca.leaf(t, "node-1", forServers), ca.leaf(t, "node-2", forServers)}
	volume.put(t, pairs[0])
	id, err := Open(volume.dir, func(err error) { t.Errorf("reported: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			id.current()
		}
	}()
	for i := 1; ; i++ {
		select {
		case <-done:
			return
		default:
			volume.put(t, pairs[i%2])
		}
	}
}

func TestModesOfNewFiles(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "certs")
	mustMake(t, dir, MakeOptions{Client: router, Nodes: []string{node}, Shared: "all"})
	mustMake(t, dir, MakeOptions{Client: router, Nodes: []string{node}, Shared: "all", Renew: true})
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		seen++
		return nil
	})
	if err != nil || seen != 5+2+9 {
		t.Errorf("%d files and directories, %v", seen, err)
	}
}

// TestAPipeDelaysNoCall: an open of a pipe would wait for a writer.
func TestAPipeDelaysNoCall(t *testing.T) {
	dir := newTestCA(t, "test CA").leaf(t, node, forServers).dir(t)
	path := filepath.Join(dir, keyFile)
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, func(error) {})
	errorSays(t, "Open", err, "tls.key: unexpected file type: it is a FIFO")
}
