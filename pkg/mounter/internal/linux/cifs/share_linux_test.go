package cifs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/linuxtest"
)

// shareBench is a Host and a server whose shares it mounts. The guest of make test-vm has a kernel
// that mounts shares.
type shareBench struct {
	*testing.T
	*smbtest.Remote
	*linux.Host
	dir      string
	password string
}

// options are those that package smb gives each mount.
var shareTestOptions = []string{"gid=4242", "forcegid", "file_mode=0660", "dir_mode=02770", "mfsymlinks", "seal",
	"sign"}

// TestShares needs a kernel with cifs, and an SMB server outside.
func TestShares(t *testing.T) {
	server := smbtest.FromEnvironment()
	if server == nil {
		t.Skip("needs an SMB server and a kernel that mounts its shares: make test-vm")
	}
	dir := filepath.Join(t.TempDir(), "kubelet")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	host, err := linuxtest.New(dir, filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	b := &shareBench{T: t, Remote: server, Host: host.(*linux.Host), dir: dir, password: "pa,ss w"}
	for _, c := range []struct {
		name string
		run  func(*shareBench)
	}{
		{"a share is staged, published and removed", (*shareBench).lifecycle},
		{"a share that cannot be mounted leaves nothing", (*shareBench).refused},
		{"the calls on a silent server end", (*shareBench).silent},
		{"a server that was killed comes back", (*shareBench).killed},
		{"a directory that was deleted on the server is mounted anew", (*shareBench).stale},
		{"a mounted share gets another password", (*shareBench).rotated},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.T = t
			defer b.cleanUp()
			if err := b.Do("mkdir/share/vol/sub dir,x", ""); err != nil {
				t.Fatal(err)
			}
			c.run(b)
			b.wantNoMounts()
		})
	}
}

// share returns the Mount of a directory of the server's first share.
func (b *shareBench) share(dir string) mounter.Mount {
	return mounter.Mount{Kind: mounter.Share, Source: "//" + b.Address + "/share/" + dir, Options: shareTestOptions,
		Credentials: mounter.Credentials{Username: b.User, Password: b.password}}
}

func (b *shareBench) at(name string) string { return filepath.Join(b.dir, name) }

// ok fails the test for an error.
func (b *shareBench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// within calls f with a context that ends after limit, and fails the test if f does not return.
func (b *shareBench) within(limit time.Duration, name string, f func(context.Context) error) error {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit + time.Minute):
		b.Fatalf("%s did not return", name)
		return nil
	}
}

// wantMounted fails the test unless path shows m.
func (b *shareBench) wantMounted(m mounter.Mount, path string, want bool) {
	b.Helper()
	ctx := await.Context(b)
	if got, err := b.Mounted(ctx, m, path); err != nil || got != want {
		b.Errorf("Mounted(%s) = %v, %v, want %v", path, got, err, want)
	}
	if got, err := b.Tree.Occupied(ctx, path); err != nil || got != want {
		b.Errorf("Occupied(%s) = %v, %v, want %v", path, got, err, want)
	}
}

// wantNoMounts fails the test if a mount or a busy helper is left.
func (b *shareBench) wantNoMounts() {
	b.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	b.ok(err)
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " - cifs ") {
			b.Errorf("left mounted: %s", line)
		}
	}
	b.awaitHelpers(false)
}

// awaitHelpers waits until helpers are busy, or until none is.
func (b *shareBench) awaitHelpers(want bool) {
	b.Helper()
	await.True(b.T, fmt.Sprintf("helpers are busy: %v", want), func() bool {
		busy, _ := b.Shares.Helpers.Busy()
		return (busy > 0) == want
	})
}

// cleanUp detaches the mounts of a test that failed.
func (b *shareBench) cleanUp() {
	names, err := os.ReadDir(b.dir)
	if err != nil {
		b.Error(err)
	}
	for _, n := range names {
		for unix.Unmount(b.at(n.Name()), unix.MNT_DETACH) == nil {
			b.Errorf("%s was left mounted", n.Name())
		}
		os.Remove(b.at(n.Name()))
	}
}

func (b *shareBench) lifecycle() {
	ctx, m := b.Context(), b.share("vol/sub dir,x")
	staging, target, reader := b.at("staging"), b.at("target"), b.at("reader")
	b.ok(b.Mount(ctx, m, staging))
	b.ok(b.Mount(ctx, m, staging))
	b.wantMounted(m, staging, true)
	if mounted, err := b.Mounted(ctx, b.share("vol"), staging); mounted || err != nil {
		b.Errorf("another directory of the share: mounted %v, %v", mounted, err)
	}
	b.ok(b.Mount(ctx, m.BindFrom(staging), target))
	b.ok(b.Mount(ctx, m.BindFrom(staging), target))
	b.wantMounted(m, target, true)
	only := m.BindFrom(staging)
	only.ReadOnly = true
	b.ok(b.Mount(ctx, only, reader))
	b.ok(os.WriteFile(filepath.Join(target, "file"), []byte("data"), 0o600))
	b.ok(os.Symlink("file", filepath.Join(target, "link")))
	if data, err := os.ReadFile(filepath.Join(reader, "link")); err != nil || string(data) != "data" {
		b.Errorf("read %q, %v through the read-only mount", data, err)
	}
	if err := os.WriteFile(filepath.Join(reader, "other"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		b.Errorf("write through a read-only mount: %v", err)
	}
	b.wantOwner(filepath.Join(target, "file"))
	if u, err := b.Usage(ctx, target); err != nil || u.TotalBytes == 0 || u.AvailableBytes == 0 {
		b.Errorf("usage %+v, %v", u, err)
	}
	if others, err := b.Tree.OtherTargets(ctx, target); err != nil || !slices.Equal(others, []string{reader, staging}) {
		b.Errorf("other targets %q, %v", others, err)
	}
	encrypted := m // a share whose server demands encryption
	encrypted.Source = "//" + b.Address + "/" + smbtest.Encrypted
	encrypted.Options = slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == "seal" })
	b.ok(b.Mount(ctx, encrypted, b.at("encrypted")))
	b.ok(os.WriteFile(filepath.Join(b.at("encrypted"), "file"), []byte("data"), 0o600))
	b.ok(b.Remove(ctx, b.at("encrypted")))
	other := m
	other.Options = slices.Concat([]string{"gid=4243"}, shareTestOptions[1:])
	if err := b.Mount(ctx, other, staging); !errors.Is(err, mounter.ErrConflict) {
		b.Errorf("another group at the same path: %v", err)
	}
	again, err := linuxtest.New(b.dir, b.at("../state-2")) // a driver that starts now knows the mounts
	b.ok(err)
	if mounted, err := again.Mounted(ctx, m, target); !mounted || err != nil {
		b.Errorf("after a restart: mounted %v, %v", mounted, err)
	}
	b.ok(again.Remove(ctx, target))
	b.ok(b.Remove(ctx, reader))
	b.ok(b.Unmount(ctx, staging))
	b.ok(b.Unmount(ctx, staging))
	b.wantMounted(m, staging, false)
	b.ok(b.Remove(ctx, staging))
}

// wantOwner fails the test unless a file has the group and the mode of the options.
func (b *shareBench) wantOwner(file string) {
	b.Helper()
	var st unix.Stat_t
	b.ok(unix.Stat(file, &st))
	if st.Gid != 4242 || st.Mode&0o7777 != 0o660 {
		b.Errorf("%s has group %d and mode %o", file, st.Gid, st.Mode&0o7777)
	}
}

func (b *shareBench) refused() {
	ctx, path := b.Context(), b.at("staging")
	for name, c := range map[string]struct {
		change func(*mounter.Mount)
		want   error
	}{
		"a wrong password":     {func(m *mounter.Mount) { m.Credentials.Password = "wrong" }, mounter.ErrAccess},
		"no such share":        {func(m *mounter.Mount) { m.Source = "//" + b.Address + "/nothing" }, mounter.ErrNotFound},
		"no such directory":    {func(m *mounter.Mount) { m.Source += "/nothing" }, mounter.ErrNotFound},
		"no server":            {func(m *mounter.Mount) { m.Source = "//10.0.2.2:1/share" }, mounter.ErrServer},
		"another user's share": {func(m *mounter.Mount) { m.Source = "//" + b.Address + "/denied" }, mounter.ErrAccess},
		"the parent directory": {func(m *mounter.Mount) { m.Source += "/.." }, mounter.ErrPath},
		"an unknown option":    {func(m *mounter.Mount) { m.Options = []string{"ip=10.0.2.3"} }, mounter.ErrOption},
		"an option that this kernel refuses": {func(m *mounter.Mount) {
			m.Options = []string{"context=system_u:object_r:container_file_t:s0"}
		}, mounter.ErrOption},
		"a line break": {func(m *mounter.Mount) { m.Credentials.Username = "nobody\nusername=alice" },
			mounter.ErrOption},
		"an option in the user name": {func(m *mounter.Mount) { m.Credentials.Username += ",uid=4321" }, mounter.ErrAccess},
	} {
		m := b.share("vol")
		c.change(&m)
		err := b.Mount(await.Context(b), m, path)
		if !errors.Is(err, c.want) {
			b.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), b.password) {
			b.Errorf("%s: the error has the password", name)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			b.Errorf("%s: left at the path: %v", name, err)
		}
	}
	m := b.share("vol")
	m.ReadOnly = true
	b.ok(b.Mount(ctx, m, path))
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		b.Errorf("write to a read-only share: %v", err)
	}
	b.ok(b.Remove(ctx, path))
}

func (b *shareBench) silent() {
	ctx, m := b.Context(), b.share("vol")
	staging, target := b.at("staging"), b.at("target")
	b.ok(b.Mount(ctx, m, staging))
	b.ok(b.Mount(ctx, m.BindFrom(staging), target))
	b.ok(b.Do("silence", ""))
	defer func() { b.ok(b.Do("resume", "")) }()
	b.wantMounted(m, staging, true)
	b.wantMounted(m, target, true)
	b.ok(b.Mount(await.Context(b), m.BindFrom(staging), b.at("second")))
	for name, call := range map[string]func(context.Context) error{
		"Usage": func(ctx context.Context) error { _, err := b.Usage(ctx, target); return err },
		"Mount of another directory": func(ctx context.Context) error {
			other := b.share("vol/sub dir,x")
			return b.Mount(ctx, other, b.at("other"))
		},
	} {
		if err := b.within(2*time.Second, name, call); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("%s: %v, want the error of the deadline", name, err)
		}
	}
	if _, err := os.Lstat(b.at("other")); !errors.Is(err, fs.ErrNotExist) {
		b.Errorf("a mount that was given up left its directory: %v", err)
	}
	b.awaitHelpers(false)
	read := make(chan error, 1) // keeps the mount busy until Remove ends it
	go func() {
		_, err := b.Usage(ctx, target)
		read <- err
	}()
	b.awaitHelpers(true)
	for _, path := range []string{target, b.at("second"), staging} {
		b.ok(b.Remove(await.Context(b), path))
	}
	if err := <-read; !errors.Is(err, mounter.ErrBusy) {
		b.Errorf("the usage of a share that is unmounted: %v, want ErrBusy", err)
	}
}

func (b *shareBench) killed() {
	ctx, m := b.Context(), b.share("vol")
	staging, target := b.at("staging"), b.at("target")
	b.ok(b.Mount(ctx, m, staging))
	b.ok(b.Mount(ctx, m.BindFrom(staging), target))
	b.ok(os.WriteFile(filepath.Join(target, "before"), []byte("data"), 0o600))
	other := b.share("vol/sub dir,x")
	b.ok(b.Mount(ctx, other, b.at("other-staging")))
	b.ok(b.Mount(ctx, other.BindFrom(b.at("other-staging")), b.at("other-target")))
	b.ok(b.Do("kill", ""))
	b.wantMounted(m, staging, true)
	for _, name := range []string{"other-target", "other-staging"} { // while the server refuses
		b.ok(b.Remove(await.Context(b), b.at(name)))
	}
	b.ok(b.Mount(await.Context(b), m.BindFrom(staging), b.at("second")))
	b.ok(b.Do("restart", ""))
	await.NoError(b.T, "a file is read after the restart", func() error {
		data, err := os.ReadFile(filepath.Join(b.at("second"), "before"))
		if err == nil && string(data) != "data" {
			err = fmt.Errorf("the file has %q", data)
		}
		return err
	})
	for _, path := range []string{target, b.at("second"), staging} {
		b.ok(b.Remove(ctx, path))
	}
}

func (b *shareBench) stale() {
	ctx, m := b.Context(), b.share("vol/gone")
	staging := b.at("staging")
	b.ok(b.Do("mkdir/share/vol/gone", ""))
	b.ok(b.Mount(ctx, m, staging))
	b.ok(os.WriteFile(filepath.Join(staging, "file"), nil, 0o600))
	if _, err := os.ReadDir(staging); err != nil {
		b.Fatal(err)
	}
	b.ok(b.Do("remove/share/vol/gone", ""))
	b.ok(b.Do("mkdir/share/vol/inode", "")) // takes the inode of the old directory
	b.ok(b.Do("mkdir/share/vol/gone", ""))
	if err := synced(staging); !errors.Is(err, unix.ESTALE) {
		b.Errorf("the state of a directory that was deleted: %v, want ESTALE", err)
	}
	b.ok(b.Mount(ctx, m, staging))
	b.ok(synced(staging))
	b.ok(b.Remove(ctx, staging))
}

// synced asks the server for the state of a directory.
func synced(path string) error {
	var st unix.Statx_t
	return unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st)
}

func (b *shareBench) rotated() {
	ctx, m := b.Context(), b.share("vol")
	staging := b.at("staging")
	b.ok(b.Mount(ctx, m, staging))
	defer func() { b.ok(b.Remove(ctx, staging)) }()
	before, err := optionsOf(staging)
	b.ok(err)
	b.ok(b.Do("password", "ne,xt"))
	defer func(first string) { b.ok(b.Do("password", first)) }(b.password) // for the tests of other packages
	b.password = "ne,xt"
	m.Credentials.Password = b.password
	err = b.Mount(ctx, m, staging)
	if errors.Is(err, mounter.ErrCredentials) {
		b.Log("this kernel cannot change the password of a mounted share")
	} else {
		b.ok(err)
		b.ok(b.Do("kill", ""))
		b.ok(b.Do("restart", ""))
	}
	after, err := optionsOf(staging)
	b.ok(err)
	if before != after {
		b.Errorf("the options of the mount were\n%s\nand are\n%s", before, after)
	}
	file := filepath.Join(staging, "after")
	await.NoError(b.T, "a file is written", func() error { return os.WriteFile(file, nil, 0o600) })
	b.wantOwner(file)
	b.ok(b.Mount(ctx, b.share("vol"), b.at("fresh"))) // with the new password
	b.ok(b.Remove(ctx, b.at("fresh")))
}

// optionsOf returns the options in the line of mountinfo for a path.
func optionsOf(path string) (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " "+path+" ") {
			_, options, _ := strings.Cut(line, " / ")
			return options, nil
		}
	}
	return "", fs.ErrNotExist
}
