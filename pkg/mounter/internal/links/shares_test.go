package links

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

var volumeA = share("//srv/share/a")

// try mounts m, and wants an error.
func (b *linkShareBench) try(m mounter.Mount, path string, want error, words ...string) {
	b.T.Helper()
	err := b.Mount(context.Background(), m, path)
	if !errors.Is(err, want) || err == nil {
		b.T.Errorf("Mount(%s) = %v, want %v", m.Source, err, want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.T.Errorf("got %q, want %q in it", err, w)
		}
	}
	if strings.Contains(err.Error(), "Passw0rd") {
		b.T.Errorf("the error has the password: %v", err)
	}
}

// remove removes paths, and waits for the mappings.
func (b *linkShareBench) removeAll(paths ...string) {
	b.T.Helper()
	for _, path := range paths {
		if err := b.Remove(context.Background(), path); err != nil {
			b.T.Errorf("remove %s: %v", path, err)
		}
	}
	b.waitForRemovals()
}

// wantNothing fails if a mapping or a record is left.
func (b *linkShareBench) wantNothing() {
	b.T.Helper()
	if len(b.shares.mapped()) > 0 || len(b.mappings.files) > 0 || len(b.store.files) > 0 {
		b.T.Errorf("left: mappings %q, records %q and %q", b.shares.mapped(), b.mappings.files, b.store.files)
	}
}

func TestMountOfAShare(t *testing.T) {
	b := newLinkShareBench(t)
	ctx := context.Background()
	b.Mkdir(b.staging(0))
	m := share("//SRV:445/Share/a")
	m.Options = []string{"uid=1000", "seal"}
	for range 2 {
		b.MustMount(m, b.staging(0))
		b.MustMount(m.BindFrom(b.staging(0)), b.pod(0))
	}
	for _, path := range []string{b.staging(0), b.pod(0)} {
		if e, err := b.model.Entry(path); err != nil || e != (LinkEntry{DirLink, `\\srv\share\a\`}) {
			t.Errorf("%s: got %+v, %v", path, e, err)
		}
		if !b.IsMounted(m, path) || b.IsMounted(share("//srv/share/A"), path) {
			t.Errorf("Mounted(%s): want this directory only", path)
		}
	}
	if !slices.Equal(b.shares.mapped(), []string{`\\srv\share`}) || b.shares.made != 1 ||
		!b.shares.mappings[`\\srv\share`].Privacy {
		t.Errorf("mappings: %q, made %d, want one for the root, with encryption", b.shares.mapped(), b.shares.made)
	}
	if got, err := b.OtherTargets(ctx, b.staging(0)); err != nil || !slices.Equal(got, []string{b.pod(0)}) {
		t.Errorf("OtherTargets = %q, %v", got, err)
	}
	if u, err := b.Usage(ctx, b.pod(0)); err != nil || u.TotalBytes != 100 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	for _, data := range b.mappings.files {
		if bytes.Contains(data, []byte("Passw0rd")) {
			t.Errorf("the record has the password: %s", data)
		}
	}
	if err := b.Unmount(ctx, b.staging(0)); err != nil {
		t.Fatal(err)
	}
	if e, err := b.model.Entry(b.staging(0)); err != nil || e.Kind != PlainDir {
		t.Errorf("the staging path: %+v, %v, want an empty directory", e, err)
	}
	b.waitForRemovals()
	if len(b.shares.mapped()) != 1 {
		t.Error("the mapping of a pod is gone")
	}
	b.removeAll(b.pod(0), b.staging(0))
	b.wantNothing()
}

func TestShareReadOnlyByRecord(t *testing.T) {
	b := newLinkShareBench(t)
	m := volumeA
	m.ReadOnly = true
	b.MustMount(m, b.staging(0))
	b.try(volumeA, b.staging(0), mounter.ErrConflict)
	b.try(volumeA.BindFrom(b.staging(0)), b.pod(0), mounter.ErrReadOnly)
	b.MustMount(m.BindFrom(b.staging(0)), b.pod(0))
}

func TestRefusedShares(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *mounter.Mount)
		want   error
		words  string
	}{
		"port":  {func(m *mounter.Mount) { m.Source = "//srv:1445/share" }, mounter.ErrPath, "port 445"},
		"name":  {func(m *mounter.Mount) { m.Source = "//srv/share/nul" }, mounter.ErrPath, "another name"},
		"local": {func(m *mounter.Mount) { m.Source = `C:\x` }, mounter.ErrPath, ""},
		"guest": {func(m *mounter.Mount) { m.Options = []string{"guest"} }, mounter.ErrOption, "(guest)"},
		"kerberos": {func(m *mounter.Mount) { m.Options = []string{"ro", "sec=krb5"} }, mounter.ErrOption,
			"option 2 of 2 (sec)"},
		"dialect": {func(m *mounter.Mount) { m.Options = []string{"vers=3.1.1"} }, mounter.ErrOption,
			"(vers) on Windows: demand seal"},
		"signature": {func(m *mounter.Mount) { m.Options = []string{"sign"} }, mounter.ErrOption,
			"(sign) on Windows: demand seal"},
		"no user":   {func(m *mounter.Mount) { m.Credentials = mounter.Credentials{} }, mounter.ErrOption, "username"},
		"NUL":       {func(m *mounter.Mount) { m.Credentials.Password = "\x00" }, mounter.ErrOption, "password"},
		"directory": {func(m *mounter.Mount) { m.Source += "/missing" }, mounter.ErrNotFound, "no such directory"},
		"share":     {func(m *mounter.Mount) { m.Source = "//srv/missing" }, mounter.ErrNotFound, "no such share"},
		"password":  {func(m *mounter.Mount) { m.Credentials.Password = "wrong" }, mounter.ErrAccess, "1326"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLinkShareBench(t)
			b.Mkdir(b.staging(0))
			m := share("//srv/share")
			tc.change(&m)
			b.try(m, b.staging(0), tc.want, tc.words)
			if e, err := b.model.Entry(b.staging(0)); err != nil || e.Kind != PlainDir {
				t.Errorf("the path: %+v, %v, want it as it was", e, err)
			}
			b.waitForRemovals()
			b.wantNothing()
		})
	}
}

func TestTextsOfShares(t *testing.T) {
	for source, want := range map[string]string{
		"//srv/Share": `\\srv\share\`, "//SRV:445/s/Sub/dir": `\\srv\s\Sub\dir\`,
		"//[2001:db8::1]/s": `\\2001-db8--1.ipv6-literal.net\s\`,
	} {
		if got, err := LinkText(source); got != want || err != nil {
			t.Errorf("linkText(%s) = %q, %v, want %q", source, got, err, want)
		}
	}
	for _, text := range []string{`\\srv\share`, `\\?\UNC\srv\share\`, `\\.\pipe\x\`, `\\srv\`, `\\srv\share\..\x\`,
		`\\srv\share\\`, `C:\x\`, `\\srv\share\a/b\`, ``} {
		if clean, root, ok := ParseUNC(text); ok {
			t.Errorf("parseUNC(%s) = %q, %q, want none", text, clean, root)
		}
	}
}

// TestCodesOfShares: the code of the system is a hint, and the probe decides.
func TestCodesOfShares(t *testing.T) {
	for code, want := range map[WindowsCode]error{5: mounter.ErrAccess, 32: mounter.ErrBusy, 53: mounter.ErrServer,
		64: mounter.ErrServer, 67: mounter.ErrNotFound,
		1219: mounter.ErrBusy, 1326: mounter.ErrAccess, 1463: errors.ErrUnsupported} {
		t.Run(fmt.Sprint(code, " without a mapping"), func(t *testing.T) {
			b := newLinkShareBench(t)
			b.shares.hook = func(op, _ string) error {
				if op == "map" {
					return code
				}
				return nil
			}
			b.try(volumeA, b.staging(0), want, fmt.Sprint(uint32(code)))
			b.waitForRemovals()
			b.wantNothing()
		})
		t.Run(fmt.Sprint(code, " in spite of a mapping"), func(t *testing.T) {
			b := newLinkShareBench(t)
			b.shares.hint = func(error) error { return code }
			b.MustMount(volumeA, b.staging(0))
		})
		t.Run(fmt.Sprint(code, " of a probe"), func(t *testing.T) {
			b := newLinkShareBench(t)
			b.shares.hook = func(op, _ string) error {
				if op == "probe" {
					return code
				}
				return nil
			}
			b.try(volumeA, b.staging(0), want, fmt.Sprint(uint32(code)))
			b.waitForRemovals()
			b.wantNothing()
		})
	}
	t.Run("success without a mapping", func(t *testing.T) {
		b := newLinkShareBench(t)
		b.shares.free = true
		b.shares.hint = func(error) error { delete(b.shares.mappings, `\\srv\share`); return nil }
		b.try(volumeA, b.staging(0), mounter.ErrServer, "made no mapping")
	})
	t.Run("links are disabled", func(t *testing.T) {
		b := newLinkShareBench(t)
		b.shares.noLinks = true
		b.try(volumeA, b.staging(0), errors.ErrUnsupported, "SymlinkEvaluation")
		b.waitForRemovals()
		b.wantNothing()
	})
}

// TestNullProperties: the library panics on them, and the next call works.
func TestNullProperties(t *testing.T) {
	for _, panics := range []string{"query", "map", "probe", "unmap"} {
		t.Run(panics, func(t *testing.T) {
			b := newLinkShareBench(t)
			once := true
			b.shares.hook = func(op, _ string) error {
				if op == panics && once {
					once = false
					panic("interface conversion: interface {} is nil, not int32")
				}
				return nil
			}
			err := b.Mount(context.Background(), volumeA, b.staging(0))
			if (err == nil) != (panics == "unmap") || err != nil && !strings.Contains(err.Error(), "panic") {
				t.Errorf("Mount = %v", err)
			}
			b.waitForRemovals()
			b.MustMount(volumeA, b.staging(0))
			b.removeAll(b.staging(0)) // whose removal may panic
			b.links.shares.sweep()    // as the next unmount does
			b.waitForRemovals()
			b.wantNothing()
		})
	}
}

// TestOneUserOfAServer: csi-driver-smb#219, #326.
func TestOneUserOfAServer(t *testing.T) {
	b := newLinkShareBench(t)
	b.MustMount(volumeA, b.staging(0))
	other := share("//srv/share/b")
	other.Credentials.Username = "other"
	second := share("//srv/second")
	second.Credentials.Username = "other"
	for _, m := range []mounter.Mount{other, second} {
		b.try(m, b.staging(1), mounter.ErrBusy, "1219", "another user", "one user")
	}
	if b.shares.made != 1 {
		t.Errorf("%d mappings were made", b.shares.made)
	}
	b.MustMount(share("//srv/second"), b.staging(1))
	b.removeAll(b.staging(0), b.staging(1))
	b.MustMount(second, b.staging(1))
	// The old user's mapping is not needed any more, but is still there.
	b.shares.hook = func(op, _ string) error {
		if op == "unmap" {
			return codeNetNameDeleted
		}
		return nil
	}
	b.removeAll(b.staging(1))
	b.shares.hook = nil
	b.MustMount(volumeA, b.staging(0))
	if !slices.Equal(b.shares.mapped(), []string{`\\srv\share`}) {
		t.Errorf("mappings: %q", b.shares.mapped())
	}
}

// TestMappingsOfOtherPrograms are used and never removed.
func TestMappingsOfOtherPrograms(t *testing.T) {
	const root = `\\srv\share`
	theirs := func(user string, dead bool) *linkShareBench {
		b := newLinkShareBench(t)
		b.shares.with(root, func(m *modelMapping) { m.foreign, m.User, m.dead = true, user, dead })
		return b
	}
	for _, user := range []string{"", "user"} {
		b := theirs(user, false)
		b.MustMount(volumeA, b.staging(0))
		b.removeAll(b.staging(0))
		if len(b.shares.mapped()) != 1 || b.shares.made != 0 || len(b.mappings.files) > 0 {
			t.Errorf("user %q: mapped %q, made %d", user, b.shares.mapped(), b.shares.made)
		}
	}
	b := theirs("", true)
	b.try(volumeA, b.staging(0), mounter.ErrServer, "another program", "Remove-SmbGlobalMapping")
	b.waitForRemovals()
	if len(b.shares.mapped()) != 1 {
		t.Error("a dead mapping of another program was removed")
	}
	b = theirs("administrator", false)
	b.try(volumeA, b.staging(0), mounter.ErrBusy, "1219", "another program")
	sealed := volumeA
	sealed.Options = []string{"seal"}
	b = theirs("", false)
	b.try(sealed, b.staging(0), mounter.ErrBusy, "without encryption")
}

// TestLostMappingRecords: the mapping becomes one of another program.
func TestLostMappingRecords(t *testing.T) {
	b := newLinkShareBench(t)
	b.MustMount(volumeA, b.staging(0))
	for name := range b.mappings.files {
		b.mappings.files[name] = []byte("torn")
	}
	b.start()
	b.MustMount(volumeA, b.staging(0))
	b.removeAll(b.staging(0))
	if len(b.shares.mapped()) != 1 || len(b.mappings.files) != 0 {
		t.Errorf("mapped %q, records %q, want the mapping without a record", b.shares.mapped(), b.mappings.files)
	}
}

// TestLostShareLinks: links without records hold the mapping.
func TestLostShareLinks(t *testing.T) {
	b := newLinkShareBench(t)
	b.MustMount(volumeA, b.staging(0))
	b.MustMount(volumeA.BindFrom(b.staging(0)), b.pod(0))
	clear(b.store.files)
	b.shares.away["srv"] = true // it is not asked
	b.start()
	b.waitForRemovals()
	if len(b.shares.mapped()) != 1 || !b.IsMounted(volumeA, b.pod(0)) {
		t.Fatalf("mapped: %q; mounted: %t", b.shares.mapped(), b.IsMounted(volumeA, b.pod(0)))
	}
	b.removeAll(b.staging(0), b.pod(0))
	b.wantNothing()
}

// TestUnusedMappingsAtStart are removed.
func TestUnusedMappingsAtStart(t *testing.T) {
	b := newLinkShareBench(t)
	b.MustMount(volumeA, b.staging(0))
	if err := errors.Join(b.model.Unlink(b.staging(0)), b.model.Rmdir(WindowsPaths.dir(b.staging(0)))); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.waitForRemovals()
	b.wantNothing()
}

// TestRebootOfShares: csi-driver-smb#38, #1219: Disconnected is normal when idle, stale after a
// reboot, and the probe decides.
func TestRebootOfShares(t *testing.T) {
	for _, persists := range []bool{false, true} {
		t.Run(fmt.Sprint("mappings persist: ", persists), func(t *testing.T) {
			b := newLinkShareBench(t)
			b.MustMount(volumeA, b.staging(0))
			b.MustMount(volumeA.BindFrom(b.staging(0)), b.pod(0))
			b.shares.persists = persists
			b.shares.reboot()
			b.start()
			// A second pod, with no stage before it (azurefile-csi-driver#3231).
			b.try(volumeA.BindFrom(b.staging(0)), b.pod(1), mounter.ErrServer, "secret")
			if b.Files.Exists(b.pod(1)) {
				t.Error("the path of the second pod is left")
			}
			unmaps := 0
			b.shares.hook = func(op, _ string) error {
				if op == "unmap" {
					unmaps++
				}
				return nil
			}
			b.MustMount(volumeA, b.staging(0)) // a publish with the secret does it
			b.MustMount(volumeA.BindFrom(b.staging(0)), b.pod(1))
			if unmaps > 0 || b.shares.made != 2 {
				t.Errorf("a mapping in use: removed %d times, made %d times, want 0 and 2", unmaps, b.shares.made)
			}
			b.removeAll(b.staging(0), b.pod(0), b.pod(1))
			b.wantNothing()
		})
	}
	t.Run("idle", func(t *testing.T) {
		b := newLinkShareBench(t)
		b.MustMount(volumeA, b.staging(0))
		b.shares.with(`\\srv\share`, func(m *modelMapping) { m.Status = 2 })
		b.MustMount(share("//srv/share/b"), b.staging(1))
		if b.shares.made != 1 {
			t.Errorf("made %d mappings, want the idle one", b.shares.made)
		}
	})
	t.Run("unused and dead", func(t *testing.T) {
		b := newLinkShareBench(t)
		b.MustMount(volumeA, b.staging(0))
		b.shares.hook = func(op, _ string) error {
			if op == "unmap" {
				return codeNetNameDeleted
			}
			return nil
		}
		b.removeAll(b.staging(0)) // the removal fails
		b.shares.hook = nil
		b.shares.with(`\\srv\share`, func(m *modelMapping) { m.dead = true })
		b.MustMount(volumeA, b.staging(0))
		if b.shares.made != 2 {
			t.Errorf("made %d mappings, want 2", b.shares.made)
		}
	})
	t.Run("in use, and not repaired", func(t *testing.T) {
		b := newLinkShareBench(t)
		b.MustMount(volumeA, b.staging(0))
		b.shares.with(`\\srv\share`, func(m *modelMapping) { m.dead = true })
		b.shares.hint = func(error) error { b.shares.mappings[`\\srv\share`].dead = true; return CodeSessionConflict }
		b.try(volumeA, b.staging(0), mounter.ErrServer, "in use", "end the pods")
		if len(b.shares.mapped()) != 1 || !b.IsMounted(volumeA, b.staging(0)) {
			t.Error("the mapping of a mount is gone")
		}
	})
}

func TestNewPasswordOfAShare(t *testing.T) {
	b := newLinkShareBench(t)
	ctx := context.Background()
	b.MustMount(volumeA, b.staging(0))
	b.shares.passwords["user"] = "new Passw0rd"
	renewed := volumeA
	renewed.Credentials.Password = "new Passw0rd"
	for range 2 {
		if err := b.Mount(ctx, renewed, b.staging(0)); !errors.Is(err, mounter.ErrCredentials) || !b.IsMounted(volumeA,
			b.staging(0)) {
			t.Errorf("Mount = %v, want ErrCredentials and the mount", err)
		}
	}
	b.MustMount(renewed.BindFrom(b.staging(0)), b.pod(0))
	b.shares.with(`\\srv\share`, func(m *modelMapping) { m.dead = true })
	b.try(volumeA, b.staging(0), mounter.ErrAccess, "1326")
	b.MustMount(renewed, b.staging(0)) // the session has ended
	b.MustMount(renewed, b.staging(0))
	b.removeAll(b.staging(0), b.pod(0))
	b.wantNothing()
}

// TestEncryptionOfAShare is not weakened silently.
func TestEncryptionOfAShare(t *testing.T) {
	b := newLinkShareBench(t)
	sealed := share("//srv/share/b")
	sealed.Options = []string{"seal"}
	b.MustMount(volumeA, b.staging(0))
	b.try(sealed, b.staging(1), mounter.ErrBusy, "without encryption")
	b.removeAll(b.staging(0))
	b.MustMount(sealed, b.staging(1))
	b.MustMount(volumeA, b.staging(0))
	b.shares.reboot()
	b.MustMount(volumeA, b.staging(0)) // which has no seal
	if !b.shares.mappings[`\\srv\share`].Privacy {
		t.Error("the repair has removed the encryption of another volume")
	}
}

// TestThousandVolumesOfAShare: csi-driver-smb#1035, #1039.
func TestThousandVolumesOfAShare(t *testing.T) {
	b := newLinkShareBench(t)
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	each := func(f func(path string, m mounter.Mount)) {
		for i := range 1000 {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				f(b.Path(fmt.Sprint("v", i)), share(fmt.Sprint("//srv/share/v", i)))
			})
		}
		all.Wait()
	}
	for i := range 1000 {
		b.shares.dirs[fmt.Sprintf(`\\srv\share\v%d\`, i)] = true
	}
	each(func(path string, m mounter.Mount) {
		if err := b.Mount(context.Background(), m, path); err != nil {
			t.Error(err)
		}
	})
	if len(b.shares.mapped()) != 1 || b.shares.made != 1 || len(b.mappings.files) != 1 {
		t.Errorf("mappings: %q, made %d, records %q, want one", b.shares.mapped(), b.shares.made, b.mappings.files)
	}
	each(func(path string, _ mounter.Mount) {
		if err := b.Remove(context.Background(), path); err != nil {
			t.Error(err)
		}
	})
	b.waitForRemovals()
	b.wantNothing()
}

// TestARemovalThatHangs delays no other call (azurefile-csi-driver#1925), except a mount of its
// share, until its context ends.
func TestARemovalThatHangs(t *testing.T) {
	b := newLinkShareBench(t)
	ctx := context.Background()
	begun, end := make(chan struct{}), make(chan struct{})
	b.shares.hook = func(op, root string) error {
		if op == "unmap" && root == `\\srv\share` {
			close(begun)
			<-end
		}
		return nil
	}
	b.MustMount(volumeA, b.staging(0))
	if err := b.Remove(ctx, b.staging(0)); err != nil {
		t.Fatal(err)
	}
	<-begun
	for _, source := range []string{"//srv/second", "//srv2/share"} {
		b.MustMount(share(source), b.staging(1))
		if err := b.Remove(ctx, b.staging(1)); err != nil {
			t.Error(err)
		}
	}
	b.MustMount(b.Volume("local"), b.pod(0))
	bounded, cancel := context.WithCancel(ctx)
	result := make(chan error)
	go func() { result <- b.Mount(bounded, volumeA, b.staging(0)) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Mount = %v, want the end of its context", err)
	}
	if err := b.links.shares.await(bounded, `\\srv\share`); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "removal") {
		t.Errorf("got %v, want the name of the removal", err)
	}
	go func() { result <- b.Mount(ctx, volumeA, b.staging(0)) }()
	close(end)
	if err := <-result; err != nil || !b.IsMounted(volumeA, b.staging(0)) {
		t.Errorf("after the removal: %v", err)
	}
	b.waitForRemovals()
	if !slices.Equal(b.shares.mapped(), []string{`\\srv\share`}) {
		t.Errorf("mappings: %q", b.shares.mapped())
	}
}

// TestServersThatHang delay their own mounts until the contexts end. No call that unmounts or looks
// asks a server: kubernetes/kubernetes#75025, trident#1184.
func TestServersThatHang(t *testing.T) {
	b := newLinkShareBench(t)
	b.MustMount(volumeA, b.staging(0))
	end := make(chan struct{})
	begun := make(chan struct{}, 100)
	b.shares.hook = func(op, root string) error {
		if op == "probe" && strings.HasPrefix(root, `\\srv\`) {
			begun <- struct{}{}
			<-end
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- b.Mount(ctx, share("//srv/share/b"), b.staging(1)) }()
	<-begun
	b.MustMount(share("//srv2/share"), b.pod(0))
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `\\srv\share`) {
		t.Errorf("Mount = %v, want the end of its context, and the server", err)
	}
	ended, stop := context.WithCancel(context.Background())
	stop()
	if _, err := b.Usage(ended, b.staging(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("Usage = %v", err)
	}
	free := context.Background()
	if !b.IsMounted(volumeA, b.staging(0)) {
		t.Error("Mounted: false")
	}
	if occupied, err := b.Occupied(free, b.staging(0)); !occupied || err != nil {
		t.Errorf("Occupied = %t, %v", occupied, err)
	}
	if err := errors.Join(b.Unmount(free, b.staging(0)), b.Remove(free, b.staging(0))); err != nil {
		t.Error(err)
	}
	if n := len(begun); n > 0 {
		t.Errorf("the server was asked %d times more", n)
	}
	close(end)
}

// TestAMappingThatComesLate, after the end of its call, is removed.
func TestAMappingThatComesLate(t *testing.T) {
	b := newLinkShareBench(t)
	begun, end := make(chan struct{}), make(chan struct{})
	b.shares.hook = func(op, root string) error {
		if op == "map" {
			close(begun)
			<-end
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- b.Mount(ctx, volumeA, b.staging(0)) }()
	<-begun
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Mount = %v", err)
	}
	b.waitForRemovals()
	close(end)
	if err := b.links.shares.worker.do(context.Background(), "the next call", func() error { return nil }); err != nil {
		t.Error(err)
	}
	b.waitForRemovals()
	b.wantNothing()
}

// TestEveryStepOfAShare: each change of the node fails, or the driver dies, with a reboot or
// without one. A repeated call completes, and nothing is left at the end.
func TestEveryStepOfAShare(t *testing.T) {
	stage := func(b *linkShareBench) error {
		if err := b.Mount(context.Background(), volumeA, b.staging(0)); err != nil {
			return err
		}
		return b.Mount(context.Background(), volumeA.BindFrom(b.staging(0)), b.pod(0))
	}
	unstage := func(b *linkShareBench) error {
		err := errors.Join(b.Remove(context.Background(), b.pod(0)), b.Unmount(context.Background(), b.staging(0)))
		b.waitForRemovals()
		return err
	}
	for name, calls := range map[string][]func(*linkShareBench) error{"mount": {nil, stage}, "unmount": {stage,
		unstage}} {
		for _, way := range []string{"fails", "fails after its effect", "dies before", "dies after"} {
			for _, reboot := range []string{"", "mappings go", "mappings persist"} {
				for n, more := 1, true; more; n++ {
					t.Run(fmt.Sprint(name, "/", way, "/", reboot, "/", n), func(t *testing.T) {
						more = testShareStep(t, calls[0], calls[1], way, reboot, n)
					})
					if !more && n < 4 {
						t.Errorf("%s has %d steps only", name, n-1)
					}
				}
			}
		}
	}
}

func testShareStep(t *testing.T, prepare, call func(*linkShareBench) error, way, reboot string, n int) (reached bool) {
	b := newLinkShareBench(t)
	b.Mkdir(b.staging(0))
	b.shares.with(`\\srv9\share`, func(m *modelMapping) { m.foreign = true })
	if prepare != nil {
		if err := prepare(b); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	dead := false
	step := func(op, at string) error {
		mu.Lock()
		defer mu.Unlock()
		if dead { // a process that died changes nothing
			return errStep
		}
		if n--; n != 0 {
			return nil
		}
		reached, dead = true, strings.HasPrefix(way, "dies")
		return errStep
	}
	lives := func(string, string) error {
		mu.Lock()
		defer mu.Unlock()
		if dead {
			return errStep
		}
		return nil
	}
	if way == "fails" || way == "dies before" {
		b.model.before = step
	} else {
		b.model.before, b.model.after = lives, step
	}
	err := call(b)
	b.waitForRemovals()
	b.model.before, b.model.after = nil, nil
	if way == "fails" && reached && err == nil && prepare == nil {
		t.Error("the call has hidden the failure")
	}
	if dead || reboot != "" {
		if reboot != "" {
			b.shares.persists = reboot == "mappings persist"
			b.shares.reboot()
			b.shares.with(`\\srv9\share`, func(m *modelMapping) { m.foreign = true })
		}
		b.start()
		b.waitForRemovals()
	}
	for _, path := range []string{b.staging(0), b.pod(0)} {
		e, err := b.model.Entry(path)
		if isLink := err == nil && e.Kind == DirLink; isLink != b.IsMounted(volumeA, path) {
			t.Errorf("%s: mounted: %t, but the entry is %+v, %v", path, !isLink, e, err)
		}
	}
	if err := call(b); err != nil {
		t.Fatalf("the repeated call: %v", err)
	}
	if mounted := b.IsMounted(volumeA, b.pod(0)) && b.IsMounted(volumeA, b.staging(0)); mounted != (prepare == nil) {
		t.Errorf("after the repeated call: mounted: %t", mounted)
	}
	if prepare == nil && b.shares.Probe(b.pod(0)) != nil {
		t.Errorf("the pod does not reach the share")
	}
	b.removeAll(b.staging(0), b.pod(0))
	if got := b.shares.mapped(); !slices.Equal(got, []string{`\\srv9\share`}) || len(b.mappings.files) > 0 ||
		len(b.store.files) > 0 {
		t.Errorf("left: mappings %q, records %q and %q", got, b.mappings.files, b.store.files)
	}
	return reached
}

func TestSharesWithoutAHost(t *testing.T) {
	b, m, _ := newModelBench(t)
	b.Refused(volumeA, b.Path("target"), errors.ErrUnsupported)
	if err := m.Link(`\\srv\share\a\`, b.Path("target")); err != nil {
		t.Fatal(err)
	}
	b.Refused(mounter.Mount{Kind: mounter.Directory, Source: b.Path("target")}, b.Path("second"), errors.ErrUnsupported)
	if _, err := m.Entry(b.Path("second")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("look = %v", err)
	}
}

func TestCodeOfResult(t *testing.T) {
	for result, want := range map[uint32]WindowsCode{0x800704C3: CodeSessionConflict, 53: codeBadNetPath,
		0x80041001: 0x80041001} {
		if got := CodeOfResult(result); got != want {
			t.Errorf("codeOfResult(%#x) = %d, want %d", result, got, want)
		}
	}
}

// TestASweepThatComesLate: between its look at links and records, and the removal, a mount has made
// a link, or another removal has removed the record.
func TestASweepThatComesLate(t *testing.T) {
	const root = `\\srv\share`
	b := newLinkShareBench(t)
	b.MustMount(volumeA, b.staging(0))
	s := b.links.shares
	r := &removal{done: make(chan struct{})}
	s.mu.Lock()
	s.removals[root], s.queue, s.removing = r, []string{root}, true
	s.mu.Unlock()
	s.remove()
	<-r.done
	if !slices.Equal(b.shares.mapped(), []string{root}) || b.shares.Probe(b.staging(0)) != nil {
		t.Errorf("mappings: %q: that of a link was removed", b.shares.mapped())
	}
	b.shares.with(`\\srv2\share`, func(m *modelMapping) { m.foreign = true })
	if err := s.removeRoot(`\\srv2\share`); err != nil || len(b.shares.mapped()) != 2 {
		t.Errorf("a mapping without a record: %v, mapped %q", err, b.shares.mapped())
	}
}

// TestAMountCancelsARemoval that waits for another one, which hangs.
func TestAMountCancelsARemoval(t *testing.T) {
	b := newLinkShareBench(t)
	begun, end := make(chan struct{}), make(chan struct{})
	b.shares.hook = func(op, root string) error {
		if op == "unmap" && root == `\\srv2\share` {
			close(begun)
			<-end
		}
		return nil
	}
	b.MustMount(volumeA, b.staging(0))
	b.MustMount(share("//srv2/share"), b.staging(1))
	if err := b.Remove(context.Background(), b.staging(1)); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := b.Remove(context.Background(), b.staging(0)); err != nil {
		t.Fatal(err)
	}
	b.MustMount(volumeA, b.staging(0))
	close(end)
	b.waitForRemovals()
	if !slices.Equal(b.shares.mapped(), []string{`\\srv\share`}) || b.shares.made != 2 {
		t.Errorf("mappings: %q, made %d, want the one of the mount, made once", b.shares.mapped(), b.shares.made)
	}
}

// TestCredentialsStaySecret: a user name comes from a secret, too.
func TestCredentialsStaySecret(t *testing.T) {
	b := newLinkShareBench(t)
	b.shares.passwords[`corp\ursula`] = "Passw0rd"
	m := volumeA
	m.Credentials = mounter.Credentials{Username: "Ursula", Domain: "CORP", Password: "Passw0rd"}
	b.MustMount(m, b.staging(0))
	err := b.Mount(context.Background(), volumeA, b.staging(1))
	if !errors.Is(err, mounter.ErrBusy) {
		t.Fatalf("the second user: %v, want ErrBusy", err)
	}
	texts := []string{err.Error()}
	for _, files := range []map[string][]byte{b.mappings.files, b.store.files} {
		for _, data := range files {
			texts = append(texts, string(data))
		}
	}
	if len(texts) != 3 {
		t.Fatalf("%d records, want one of the mapping and one of the mount", len(texts)-1)
	}
	for _, text := range texts {
		for _, secret := range []string{"ursula", "corp", "passw0rd"} {
			if strings.Contains(strings.ToLower(text), secret) {
				t.Errorf("%q is in %s", secret, text)
			}
		}
	}
}
