package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// claimed is a request with the names of Kubernetes' objects.
func (w *world) claimed(name string, parameters ...string) backend.CreateOptions {
	o := w.request(name, parameters...)
	o.Claim = backend.Claim{Namespace: "team", Name: "data", Volume: name}
	return o
}

func (w *world) create(b *Backend, o backend.CreateOptions) backend.Volume {
	w.Helper()
	v, err := b.Create(context.Background(), o)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// entries returns the names in the source, without those of the driver.
func (w *world) entries() (names []string) {
	w.Helper()
	all, err := os.ReadDir(w.path())
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range all {
		if e.Name() != records.MetaDir {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestTemplatesOfSubDir(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	for template, want := range map[string]string{
		"":                     "pvc-0",
		"${pv.metadata.name}":  "pvc-1",
		"${pvc.metadata.name}": "data",
		"teams/${pvc.metadata.namespace}/${pv.metadata.name}": "teams/team/pvc-3",
		"a b,c=d ü": "a b,c=d ü",
	} {
		i := map[string]int{"": 0, "${pv.metadata.name}": 1, "${pvc.metadata.name}": 2, "a b,c=d ü": 4}
		n, ok := i[template]
		if !ok {
			n = 3
		}
		o := w.claimed(fmt.Sprint("pvc-", n))
		if template != "" {
			o.Parameters[subDirKey] = template
		}
		v := w.create(b, o)
		if info, err := os.Stat(w.path(want)); err != nil || !info.IsDir() || v.Context[subDirKey] != want {
			t.Errorf("%q: subDir %q, %v, want %q", template, v.Context[subDirKey], err, want)
		}
		m, err := b.Mount(context.Background(), v.ID, backend.Access{Context: v.Context})
		if err != nil || m.Source != w.source()+"/"+want {
			t.Errorf("%q: Mount = %s, %v", template, m.Source, err)
		}
	}
}

// TestInvalidRequests: each leaves nothing.
func TestInvalidRequests(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	long := fmt.Sprintf("//127.0.0.1:%d/%s/%s", w.Port, w.dir, strings.Repeat("x", 60))
	for _, row := range []struct {
		key, value string
		want       error
		says       string
	}{
		{subDirKey, "..", backend.ErrInvalid, `".." is not a name`},
		{subDirKey, "a/../../victim", backend.ErrInvalid, `".." is not a name`},
		{subDirKey, ".", backend.ErrInvalid, ""}, {subDirKey, "", backend.ErrInvalid, ""},
		{subDirKey, "/", backend.ErrInvalid, ""}, {subDirKey, "a//b", backend.ErrInvalid, ""},
		{subDirKey, `a\b`, backend.ErrInvalid, `the character '\\'`}, {subDirKey, "a\nb", backend.ErrInvalid, ""},
		{subDirKey, "a\x00b", backend.ErrInvalid, ""}, {subDirKey, "a:b", backend.ErrInvalid, "the character ':'"},
		{subDirKey, "a*", backend.ErrInvalid, ""}, {subDirKey, "dot.", backend.ErrInvalid, "ends with a dot"},
		{subDirKey, "space ", backend.ErrInvalid, ""}, {subDirKey, " space", backend.ErrInvalid, "begins with a space"},
		{subDirKey, "CON", backend.ErrInvalid, "device on Windows"}, {subDirKey, "a/aux.txt", backend.ErrInvalid, "device"},
		{subDirKey, "com1", backend.ErrInvalid, "device"}, {subDirKey, "LPT9.x", backend.ErrInvalid, "device"},
		{subDirKey, ".causeway", backend.ErrInvalid, "reserved"}, {subDirKey, ".CauseWay/trash", backend.ErrInvalid, "reserved"},
		{subDirKey, "PVC-0~Q/x", backend.ErrInvalid, "short name"}, {subDirKey, "p~a.v", backend.ErrInvalid, "short name"},
		{subDirKey, "\uff0ecauseway", backend.ErrInvalid, "reserved"},
		{subDirKey, "LONGDI~1/x", backend.ErrInvalid, "short name"}, {subDirKey, "causew~1.txt", backend.ErrInvalid, "short name"},
		{subDirKey, "${pvc.metadata.uid}", backend.ErrInvalid, "unknown variable"},
		{subDirKey, "${pv.metadata.name", backend.ErrInvalid, "${name}"},
		{subDirKey, strings.Repeat("x", 256), backend.ErrInvalid, "at most 255"},
		{sourceKey, "", backend.ErrInvalid, ""}, {sourceKey, "//127.0.0.1", backend.ErrInvalid, "share is missing"},
		{sourceKey, w.source() + "/..", backend.ErrInvalid, ""}, {sourceKey, w.source() + "/.causeway", backend.ErrInvalid, "reserved"},
		{sourceKey, w.source() + ",uid=0\nx", backend.ErrInvalid, ""},
		{sourceKey, long, backend.ErrInvalid, "bytes: must be at most 128"},
		{sourceKey, "//10.9.9.9/share", backend.ErrUnauthenticated, "list the share in"},
		{sourceKey, w.source() + "/none", backend.ErrPrecondition, "there is no directory"},
		{onDeleteKey, "keep", backend.ErrInvalid, "must be delete or retain or archive"},
		{encryptKey, "yes", backend.ErrInvalid, "must be false or true"}, {outageKey, "", backend.ErrInvalid, ""},
		{existingKey, "delete", backend.ErrInvalid, ""},
		{"subdir", "x", backend.ErrInvalid, `unknown parameter "subdir"`},
	} {
		o := w.claimed("pvc-1")
		o.Parameters[row.key] = row.value
		if v, err := b.Create(context.Background(), o); !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s=%.60q: %+v, %v, want %v with %q", row.key, row.value, v, err, row.want, row.says)
		}
	}
	for name, change := range map[string]func(o *backend.CreateOptions){
		"a block device": func(o *backend.CreateOptions) { o.Access[0].Block = true },
		"ext4":           func(o *backend.CreateOptions) { o.Access[0].FSType = "ext4" },
		"a credential":   func(o *backend.CreateOptions) { o.Access[0].Options = []string{"password=hidden"} },
		"another server": func(o *backend.CreateOptions) { o.Access[0].Options = []string{"ip=10.0.0.1"} },
		"hard":           func(o *backend.CreateOptions) { o.Access[0].Options = []string{"hard"} },
		"a mutable":      func(o *backend.CreateOptions) { o.Mutable = map[string]string{sourceKey: "//a/b"} },
		"no name of the claim": func(o *backend.CreateOptions) {
			o.Claim = backend.Claim{}
			o.Parameters[subDirKey] = "${pvc.metadata.name}"
		},
	} {
		o := w.claimed("pvc-1")
		change(&o)
		if v, err := b.Create(context.Background(), o); !errors.Is(err, backend.ErrInvalid) ||
			strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %+v, %v, want ErrInvalid", name, v, err)
		}
	}
	if left := w.entries(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAnExistingDirectoryIsNotTaken: neither by Create nor by a later Delete.
func TestAnExistingDirectoryIsNotTaken(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	if err := errors.Join(os.Mkdir(w.path("Theirs"), 0o777),
		os.WriteFile(w.path("Theirs", "data"), []byte("precious"), 0o666), os.Mkdir(w.path("empty"), 0o777),
		os.WriteFile(w.path("file"), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	for i, subDir := range []string{"Theirs", "theirs", "empty", "file"} {
		o := w.claimed(fmt.Sprint("pvc-", i), subDirKey, subDir)
		for range 2 {
			if v, err := b.Create(ctx, o); !errors.Is(err, backend.ErrPrecondition) ||
				!strings.Contains(err.Error(), "no record of this source names it") {
				t.Fatalf("subDir %s: %+v, %v, want ErrPrecondition", subDir, v, err)
			}
		}
		id, err := records.NewObject('a', w.parsed(), o.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(ctx, id.String(), nil); err != nil {
			t.Error(err)
		}
	}
	w.holds("precious", "Theirs", "data")
	if _, err := os.Stat(w.path("empty")); err != nil {
		t.Error(err)
	}
	one := w.create(b, w.claimed("shared-1", subDirKey, "Theirs", existingKey, "use"))
	two := w.create(b, w.claimed("shared-2", subDirKey, "theirs", existingKey, "use"))
	if _, err := b.Create(ctx, w.claimed("pvc-9", subDirKey, "Theirs/inner")); !errors.Is(err, backend.ErrPrecondition) {
		t.Errorf("a volume inside a shared directory: %v", err)
	}
	if _, err := b.Clone(ctx, one.ID, w.claimed("pvc-9", subDirKey, "empty", existingKey, "use")); !errors.Is(err,
		backend.ErrInvalid) {
		t.Errorf("a clone into a shared directory: %v", err)
	}
	for _, v := range []backend.Volume{one, two} {
		if err := b.Delete(ctx, v.ID, nil); err != nil {
			t.Error(err)
		}
	}
	w.holds("precious", "Theirs", "data")
}

func TestDirectoriesOfVolumesDoNotOverlap(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	outer := w.create(b, w.claimed("outer", subDirKey, "teams/one"))
	w.create(b, w.claimed("accents", subDirKey, "caf\u00e9/stra\u00dfe"))
	for i, subDir := range []string{"teams/one/inner", "TEAMS/One/inner/x", "teams", "Teams", "teams/ONE",
		"CAFE\u0301/STRASSE", "cafe\u0301/strasse/x", "te\u200bams/one"} {
		for _, existing := range []string{"refuse", "use"} {
			o := w.claimed(fmt.Sprint("pvc-", i, existing), subDirKey, subDir, existingKey, existing)
			if v, err := b.Create(context.Background(), o); !errors.Is(err, backend.ErrPrecondition) ||
				i < 5 && !strings.Contains(err.Error(), "of volume "+outer.ID) {
				t.Errorf("%s, existing=%s: %+v, %v, want ErrPrecondition", subDir, existing, v, err)
			}
		}
	}
	w.create(b, w.claimed("sibling", subDirKey, "teams/one-and-two"))
}

// emptyTrash empties the trash of the share, as the background does at the same time.
func (w *world) emptyTrash(b *Backend) {
	w.Helper()
	await.NoError(w, "the trash is empty", func() error {
		if err := b.emptyTrashNow(context.Background(), w.parsed(), nil); err != nil {
			return err
		}
		return w.trash()
	})
}

// trash returns an error if the trash has entries.
func (w *world) trash() error {
	all, err := os.ReadDir(w.path(records.MetaDir, trashDir))
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("the trash has %v", all)
	}
	return err
}

func TestOnDelete(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	for round := range 2 { // the name can be used again
		for _, onDelete := range []string{records.DeleteData, records.RetainData, records.ArchiveData} {
			v := w.create(b, w.claimed("pvc-"+onDelete, onDeleteKey, onDelete, subDirKey, fmt.Sprint(onDelete, round, "/x")))
			if err := os.WriteFile(w.path(fmt.Sprint(onDelete, round), "x", "data"), []byte("precious"), 0o666); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := b.Delete(ctx, v.ID, nil); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.Get(ctx, v.ID, nil); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("%s: Get of a deleted volume: %v", onDelete, err)
			}
		}
	}
	w.emptyTrash(b)
	w.holds("precious", "retain0", "x", "data")
	w.holds("precious", "retain1", "x", "data")
	if _, err := os.Stat(w.path("delete0", "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a deleted directory: %v", err)
	}
	for round := range 2 {
		archives, err := filepath.Glob(w.path(fmt.Sprintf("archived-archive%d-x-*", round)))
		if err != nil || len(archives) != 1 {
			t.Fatalf("archives %v, %v", archives, err)
		}
		w.holds("precious", filepath.Base(archives[0]), "data")
	}
}

// TestForeignHandles: nothing is deleted for a handle that this driver has not made.
func TestForeignHandles(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	if err := os.Mkdir(w.path("pvc-1"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{w.source()[2:] + "#pvc-1#", "smb.example.com/share#pvc-1#uuid#delete", "#", "a#.."} {
		if err := b.Delete(ctx, id, nil); !errors.Is(err, backend.ErrPrecondition) ||
			!strings.Contains(err.Error(), "csi-driver-smb") {
			t.Errorf("Delete(%q) = %v, want ErrPrecondition", id, err)
		}
	}
	o, err := records.NewObject('a', w.parsed(), "none")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{o.String() + "/..", o.String() + "/../x", strings.ToUpper(o.Key) + "@x/y",
		o.Key + "@10.9.9.9/share", o.Key, o.Key + "@"} {
		if err := b.Delete(ctx, id, nil); err != nil {
			t.Errorf("Delete(%q) = %v, want nil", id, err)
		}
		if _, err := b.Get(ctx, id, nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Get(%q) = %v, want ErrNotFound", id, err)
		}
	}
	if _, err := os.Stat(w.path("pvc-1")); err != nil {
		t.Error(err)
	}
}

func TestStaticVolumes(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	ctx := context.Background()
	b, err := New(Config{Krb5Conf: "/etc/krb5.conf"}) // of a node
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := os.MkdirAll(w.path("sub", "dir"), 0o777); err != nil {
		t.Fatal(err)
	}
	a := backend.Access{Context: map[string]string{sourceKey: w.source(), subDirKey: "sub/dir", encryptKey: "true",
		outageKey: "wait"}, Secrets: map[string]string{userKey: w.user + "\n", passwordKey: w.password, domainKey: "W"},
		Options: []string{"dir_mode=0700", "uid=1000"}, ReadOnly: true}
	m, err := b.Mount(ctx, "any handle", a)
	if err != nil {
		t.Fatal(err)
	}
	if want := (mounter.Credentials{Username: w.user, Password: w.password, Domain: "W"}); m.Kind != mounter.Share ||
		m.Source != w.source()+"/sub/dir" || !m.ReadOnly || m.Credentials != want {
		t.Errorf("Mount = %+v", m)
	}
	slices.Sort(m.Options)
	if want := []string{"dir_mode=0700", "file_mode=0777", "hard", "mfsymlinks", "nosharesock", "seal", "sign", "uid=1000",
		"vers=3"}; !slices.Equal(m.Options, want) {
		t.Errorf("options %v, want %v", m.Options, want)
	}
	for name, row := range map[string]struct {
		change func(a *backend.Access)
		want   error
	}{
		"no secret":          {func(a *backend.Access) { a.Secrets = nil }, backend.ErrUnauthenticated},
		"no user name":       {func(a *backend.Access) { delete(a.Secrets, userKey) }, backend.ErrUnauthenticated},
		"a wrong password":   {func(a *backend.Access) { a.Secrets[passwordKey] = "wrong" }, backend.ErrUnauthenticated},
		"no directory":       {func(a *backend.Access) { a.Context[subDirKey] = "none" }, backend.ErrPrecondition},
		"no share":           {func(a *backend.Access) { a.Context[sourceKey] = w.source()[:17] + "/none" }, backend.ErrPrecondition},
		"traversal":          {func(a *backend.Access) { a.Context[subDirKey] = "sub/../.." }, backend.ErrInvalid},
		"another key":        {func(a *backend.Access) { a.Context["onDelete"] = "delete" }, backend.ErrInvalid},
		"no source":          {func(a *backend.Access) { delete(a.Context, sourceKey) }, backend.ErrNotFound},
		"soft and hard":      {func(a *backend.Access) { a.Options = []string{"soft"} }, backend.ErrInvalid},
		"a forbidden option": {func(a *backend.Access) { a.Options = []string{"credentials=/etc/shadow"} }, backend.ErrInvalid},
	} {
		bad := a
		bad.Context, bad.Secrets = map[string]string{}, map[string]string{}
		for k, v := range a.Context {
			bad.Context[k] = v
		}
		for k, v := range a.Secrets {
			bad.Secrets[k] = v
		}
		row.change(&bad)
		if m, err := b.Mount(ctx, "any handle", bad); !errors.Is(err, row.want) || strings.Contains(err.Error(), w.password) {
			t.Errorf("%s: %+v, %v, want %v", name, m, err, row.want)
		}
	}
	kerberos := backend.Access{Context: a.Context, Secrets: map[string]string{userKey: "alice"},
		Options: []string{kerberosOption, "cruid=1000"}}
	if m, err := b.Mount(ctx, "any handle", kerberos); err != nil || m.Credentials.Username != "alice" ||
		!slices.Contains(m.Options, kerberosOption) {
		t.Errorf("with the host's tickets: %+v, %v", m, err)
	}
}

func TestOwnedGivesFilesToAGroup(t *testing.T) {
	m := mounter.Mount{Kind: mounter.Share, Options: []string{"file_mode=0644", "dir_mode=0755", "forcegid", "seal"}}
	got, err := new(Backend).Owned(m, 4242)
	if want := []string{"gid=4242", "forcegid", "file_mode=0664", "dir_mode=02775", "seal"}; err != nil ||
		!slices.Equal(got.Options, want) {
		t.Errorf("Owned = %v, %v, want %v", got.Options, err, want)
	}
	if err := mounter.CheckOptions(mounter.Share, "", got.Options); err != nil {
		t.Error(err)
	}
	own := mounter.Mount{Options: []string{"gid=1", "file_mode=0600"}}
	if got, err := new(Backend).Owned(own, 4242); err != nil || !slices.Equal(got.Options, own.Options) {
		t.Errorf("with the mount option gid: %v, %v", got.Options, err)
	}
}

// TestTheFileOfShares: it is read again when it changes, and an invalid file changes nothing.
func TestTheFileOfShares(t *testing.T) {
	server := smbtest.Serve(t)
	w := newWorld(t, server, smbtest.Share)
	valid, err := os.ReadFile(w.shares)
	if err != nil {
		t.Fatal(err)
	}
	b := w.open()
	w.create(b, w.claimed("pvc-1"))
	for _, bad := range []string{"shares: [", "share: []", "shares: [{source: //a/b}]",
		"shares: [{source: //a/b, credentials: relative}]", "shares: [{source: //a/b, guest: true, credentials: /c}]",
		"shares: [{source: //a/b/.., guest: true}]", "shares: [{source: //a/b, guest: true}, {source: //A/B, guest: true}]",
		"shares: [{source: //a/b, guest: true, password: x}]"} {
		if err := os.WriteFile(w.shares, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Shares: w.shares}); err == nil || !strings.Contains(err.Error(), "--smb-shares") {
			t.Errorf("New with %q = %v", bad, err)
		}
		w.create(b, w.claimed("pvc-1")) // the file that was read before
	}
	if err := os.WriteFile(w.shares, []byte("shares: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(context.Background(), w.claimed("pvc-1")); !errors.Is(err, backend.ErrUnauthenticated) {
		t.Errorf("Create on a share that was removed: %v", err)
	}
	if all, _, err := b.List(context.Background(), "", 10); err != nil || len(all) != 0 {
		t.Errorf("List without shares = %v, %v", all, err)
	}
	o := w.claimed("pvc-1")
	o.Secrets = w.secrets() // win
	w.create(b, o)
	o.Secrets[passwordKey] = "wrong"
	if _, err := b.Create(context.Background(), o); !errors.Is(err, backend.ErrUnauthenticated) ||
		strings.Contains(err.Error(), "wrong") {
		t.Errorf("Create with a wrong password: %v", err)
	}
	if err := os.WriteFile(w.shares, valid, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, _, err := b.List(context.Background(), "", 10); err != nil || len(all) != 1 {
		t.Errorf("List = %v, %v", all, err)
	}
}

// TestAFullShare: Create fails and leaves nothing; Delete works.
func TestAFullShare(t *testing.T) {
	server := smbtest.Serve(t)
	mount := filepath.Join(server.Dir, smbtest.Share, "small")
	if err := os.Mkdir(mount, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("small", mount, "tmpfs", 0, "size=16m,mode=0777"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer unix.Unmount(mount, unix.MNT_DETACH)
	w := newWorld(t, server, smbtest.Share+"/small")
	b := w.open()
	ctx := context.Background()
	v := w.create(b, w.claimed("pvc-1"))
	if err := os.WriteFile(w.path("pvc-1", "data"), make([]byte, 6<<20), 0o666); err != nil {
		t.Fatal(err)
	}
	snapshot, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "snap-1", Source: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Clone(ctx, v.ID, w.claimed("copy")); !errors.Is(err, backend.ErrExhausted) {
		t.Errorf("a clone on a full share: %v", err)
	}
	if names := w.entries(); !slices.Equal(names, []string{"pvc-1"}) {
		t.Errorf("left: %v", names)
	}
	w.emptyTrash(b)
	b.Close() // nothing frees space in the background any more
	fill, err := os.Create(w.path("fill"))
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	b = w.open()
	if _, err := b.Create(ctx, w.claimed("pvc-2")); !errors.Is(err, backend.ErrExhausted) {
		t.Errorf("Create on a full share: %v", err)
	}
	if names := w.entries(); !slices.Equal(names, []string{"fill", "pvc-1"}) {
		t.Errorf("left: %v", names)
	}
	if err := b.DeleteSnapshot(ctx, snapshot.ID, nil); err != nil {
		t.Errorf("DeleteSnapshot on a full share: %v", err)
	}
	if err := b.Delete(ctx, v.ID, nil); err != nil {
		t.Errorf("Delete on a full share: %v", err)
	}
}

// TestAnOpenFileDoesNotStopTheTrash: another client has a file of a deleted volume open.
func TestAnOpenFileDoesNotStopTheTrash(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	v := w.create(b, w.claimed("pvc-1"))
	for i := range 20 {
		if err := os.WriteFile(w.path("pvc-1", fmt.Sprint("file-", i)), []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	login, err := b.login(w.parsed(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.pool.Open(ctx, w.parsed(), login, client.Jobs)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	held, refused, released := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { // a list keeps its directory open
		defer close(released)
		hold := sync.OnceFunc(func() {
			close(held)
			await.Receive(t, "the server has refused the deletion", refused)
		})
		other.List(ctx, w.parsed().Path+"/pvc-1", func(_ client.Entry) error {
			hold()
			return nil
		})
	}()
	<-held
	var attempts atomic.Int64
	before := b.pool.Before
	b.pool.Before = func(op, path string) error { // the second attempt follows a refusal
		if strings.HasSuffix(path, "/pvc-1") && (op == "remove" || strings.HasPrefix(op, "move")) && attempts.Add(1) == 2 {
			close(refused)
		}
		return nil
	}
	deleteUntil(t, b, v.ID)
	<-released
	b.pool.Before = before
	w.create(b, w.claimed("pvc-2"))
	deleteUntil(t, b, w.create(b, w.claimed("pvc-3")).ID)
	w.emptyTrash(b)
}

// TestLinksOfTheServerAreNotFollowed: a local user of the server makes links that lead out of a
// volume. With follow symlinks = no, neither a copy nor the deletion of the volume reaches the
// files behind them.
func TestLinksOfTheServerAreNotFollowed(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	ctx := context.Background()
	v, taken := w.create(b, w.claimed("pvc-1")), w.create(b, w.claimed("pvc-2"))
	if err := errors.Join(os.MkdirAll(w.path("victim", "dir"), 0o777),
		os.WriteFile(w.path("victim", "dir", "data"), []byte("precious"), 0o666),
		os.Symlink("../victim", w.path("pvc-1", "dir")), os.Symlink("../victim/dir/data", w.path("pvc-1", "file")),
		os.Remove(w.path("pvc-2")), os.Symlink("victim", w.path("pvc-2"))); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Clone(ctx, v.ID, w.claimed("pvc-3")); err != nil {
		t.Error(err)
	}
	if copied, err := os.ReadDir(w.path("pvc-3")); err != nil || len(copied) > 0 {
		t.Errorf("the clone has %v, %v", copied, err)
	}
	// Samba 4.17 hides such a link, and 4.22 shows it as a file.
	if _, err := b.Mount(ctx, taken.ID, backend.Access{}); !errors.Is(err, backend.ErrPrecondition) ||
		!strings.Contains(err.Error(), "there is no directory") && !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("Mount of a volume in whose place there is a link: %v", err)
	}
	if err := b.Delete(ctx, v.ID, nil); err != nil {
		t.Error(err)
	}
	if err := b.Delete(ctx, taken.ID, nil); err != nil && (!errors.Is(err, backend.ErrPrecondition) ||
		!strings.Contains(err.Error(), "move it away")) {
		t.Errorf("Delete of a volume in whose place there is a link: %v", err)
	}
	if err := b.emptyTrashNow(ctx, w.parsed(), nil); err != nil {
		t.Error(err)
	}
	w.holds("precious", "victim", "dir", "data")
	if _, err := os.Lstat(w.path("pvc-2")); err != nil {
		t.Errorf("the link in the place of a volume: %v", err)
	}
}

// TestNamesThatTheServerTellsApart: the deletion of a volume removes its data, and nothing of a volume
// whose name some other server would take for the same.
func TestNamesThatTheServerTellsApart(t *testing.T) {
	server := smbtest.Serve(t)
	for name, tc := range map[string]struct{ share, first, second string }{
		"case":          {smbtest.CaseSensitive, "Data", "data"},
		"normalization": {smbtest.Share, "caf\u00e9", "cafe\u0301"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, server, tc.share)
			b := w.open()
			ctx := context.Background()
			first := w.create(b, w.claimed("pvc-1", subDirKey, tc.first))
			second := w.create(b, w.claimed("pvc-2", subDirKey, tc.second))
			for _, dir := range []string{tc.first, tc.second} {
				if err := os.WriteFile(w.path(dir, "data"), []byte(dir), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			deleteUntil(t, b, first.ID)
			w.emptyTrash(b)
			if names := w.entries(); !slices.Equal(names, []string{tc.second}) {
				t.Errorf("left: %q", names)
			}
			w.holds(tc.second, tc.second, "data")
			if err := b.Delete(ctx, second.ID, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNamesThatTheServerTakesForOne: a person has given the directory of a volume a record of its own.
// The deletion of one volume keeps the data of the other.
func TestNamesThatTheServerTakesForOne(t *testing.T) {
	w := newWorld(t, smbtest.Serve(t), smbtest.Share)
	b := w.open()
	first := w.create(b, w.claimed("pvc-1", subDirKey, "Data"))
	second := w.create(b, w.claimed("pvc-2", subDirKey, "other"))
	if err := os.WriteFile(w.path("Data", "f"), []byte("precious"), 0o666); err != nil {
		t.Fatal(err)
	}
	moveRecord(t, b, w.parsed(), second.ID, "data")
	deleteUntil(t, b, first.ID)
	w.emptyTrash(b)
	w.holds("precious", "Data", "f")
	if names := w.entries(); !slices.Equal(names, []string{"Data", "other"}) {
		t.Errorf("left: %q", names)
	}
}

func TestHealth(t *testing.T) {
	server := smbtest.Serve(t)
	w := newWorld(t, server, smbtest.Share)
	b := w.open()
	ctx := context.Background()
	one, two := w.create(b, w.claimed("pvc-1")), w.create(b, w.claimed("pvc-2"))
	if err := os.Remove(w.path("pvc-1")); err != nil {
		t.Fatal(err)
	}
	sick, _, err := b.ListHealth(ctx, "", 10)
	if err != nil || len(sick) != 1 || sick[0].ID != one.ID || sick[0].Conditions[0].Reason != "DirectoryMissing" {
		t.Errorf("ListHealth = %+v, %v", sick, err)
	}
	reason := func() string {
		conditions, err := b.Health(ctx, two.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(conditions) == 0 {
			return ""
		}
		return conditions[0].Reason
	}
	if r := reason(); r != "" {
		t.Errorf("a healthy volume has the condition %s", r)
	}
	m, err := b.Mount(ctx, two.ID, backend.Access{})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := reason(); r != "ServerUnreachable" {
		t.Errorf("the server is gone: %q", r)
	}
	if conditions, err := b.Reach(ctx, m); err != nil || len(conditions) != 1 ||
		conditions[0].Severity != backend.Inaccessible || conditions[0].Reason != "ServerUnreachable" {
		t.Errorf("Reach = %+v, %v", conditions, err)
	}
	if _, _, err := b.ListHealth(ctx, "", 10); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("ListHealth without a server: %v", err)
	}
	if conditions, err := b.StorageHealth(ctx); err != nil || len(conditions) != 1 {
		t.Errorf("StorageHealth = %+v, %v", conditions, err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if r := reason(); r != "" {
		t.Errorf("after the restart: %s", r)
	}
	if conditions, err := b.StorageHealth(ctx); err != nil || len(conditions) != 0 {
		t.Errorf("StorageHealth = %+v, %v", conditions, err)
	}
	b.measureAll(ctx)
	values := map[string]float64{}
	for _, metric := range b.Metrics() {
		values[metric.Name] = metric.Value
	}
	if values["share_up"] != 1 || values["share_available_bytes"] <= 0 ||
		values["share_size_bytes"] < values["share_available_bytes"] {
		t.Errorf("metrics %v", values)
	}
	if err := server.SetPassword("another"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(server.Kill(), server.Restart()); err != nil {
		t.Fatal(err)
	}
	reason() // may see the end of the session
	if r := reason(); r != "CredentialsRejected" {
		t.Errorf("the password has changed: %q", r)
	}
}

// TestAMountNeedsThePasswordOfNow: the server keeps sessions that were opened with an older one.
func TestAMountNeedsThePasswordOfNow(t *testing.T) {
	ctx := t.Context()
	server := smbtest.Serve(t)
	w := newWorld(t, server, smbtest.Share)
	b := w.open()
	v := w.create(b, w.claimed("pvc-1"))
	secrets := func(password string) map[string]string {
		return map[string]string{userKey: w.user, passwordKey: password}
	}
	mount := func(password string) error {
		_, err := b.Mount(ctx, v.ID, backend.Access{Context: v.Context, Secrets: secrets(password)})
		return err
	}
	old := server.Password
	if err := mount(old); err != nil {
		t.Fatal(err)
	}
	// As paths, which the library made of passwords, these have other forms.
	for _, next := range []string{`a\b`, `a\\b`, `\`, `\\`, `\a`, `a\`, `a/b\`, `C:\\x`, "pässwörd 𝄞"} {
		if _, err := b.Get(ctx, v.ID, secrets(old)); err != nil { // leaves a session in the pool
			t.Errorf("Get with the password of now: %v", err)
		}
		if err := server.SetPassword(next); err != nil {
			t.Fatal(err)
		}
		if err := mount(old); !errors.Is(err, backend.ErrUnauthenticated) {
			t.Errorf("Mount with the password before %q = %v, want ErrUnauthenticated", next, err)
		}
		if err := mount(next); err != nil {
			t.Errorf("Mount with the password %q = %v", next, err)
		}
		old = next
	}
}

// TestASilentServer: calls on it end with their context, and calls on another server are not
// delayed.
func TestASilentServer(t *testing.T) {
	silent, other := smbtest.Serve(t), smbtest.Serve(t)
	w, v := newWorld(t, silent, smbtest.Share), newWorld(t, other, smbtest.Share)
	list, err := os.ReadFile(v.shares)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(w.shares)
	if err != nil {
		t.Fatal(err)
	}
	w.shares = w.file("both.yaml", string(first)+strings.TrimPrefix(string(list), "shares:\n"))
	b := w.open()
	id := w.create(b, w.claimed("pvc-1")).ID
	if err := silent.Silence(); err != nil {
		t.Fatal(err)
	}
	defer silent.Resume()
	for name, call := range map[string]func(ctx context.Context) error{
		"Create": func(ctx context.Context) error { _, err := b.Create(ctx, w.claimed("pvc-2")); return err },
		"Get":    func(ctx context.Context) error { _, err := b.Get(ctx, id, nil); return err },
		"Delete": func(ctx context.Context) error { return b.Delete(ctx, id, nil) },
		"Mount":  func(ctx context.Context) error { _, err := b.Mount(ctx, id, backend.Access{}); return err },
		"Snapshot": func(ctx context.Context) error {
			_, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "s", Source: id})
			return err
		},
		"List": func(ctx context.Context) error { _, _, err := b.List(ctx, "", 10); return err },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		if _, err := b.Create(context.Background(), v.claimed("pvc-"+strings.ToLower(name))); err != nil {
			t.Errorf("Create on another server: %v", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s on a silent server: %v", name, err)
		}
	}
	if err := silent.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := until(t, func() (backend.Volume, error) { return b.Create(context.Background(), w.claimed("pvc-2")) }); err != nil {
		t.Errorf("Create after the silence: %v", err)
	}
	deleteUntil(t, b, id)
}
