package mounter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/beneath"
)

func TestLinksOverAModelKeepTheContract(t *testing.T) {
	testContract(t, func(t *testing.T) *bench {
		b, _, _ := newModelBench(t)
		return b
	})
}

func TestLinksOfThisMachineKeepTheContract(t *testing.T) {
	testContract(t, func(t *testing.T) *bench {
		host := localLinks(t)
		b := newBench(t, func(dir string) Host {
			return linksHost{startLinks(t, host, dir, newRecordDir(t))}
		})
		b.options = nil
		b.files = hostFiles{osFiles{}, t, host}
		if runtime.GOOS == "windows" { // other forms of a path are brought into one
			b.unclean = nil
		}
		return b
	})
}

// hostFiles is the filesystem of this machine, with the links of a linkHost.
type hostFiles struct {
	osFiles
	t    *testing.T
	host linkHost
}

// symlink makes a link, which is removed before the directories of the test.
func (f hostFiles) symlink(text, path string) error {
	if err := f.host.link(text, path); err != nil {
		return err
	}
	f.t.Cleanup(func() {
		if err := f.host.unlink(path); err != nil {
			f.t.Error(err)
		}
	})
	return nil
}

// newRecordDir returns the store of a real Host.
func newRecordDir(t *testing.T) recordDir {
	t.Helper()
	dir, err := beneath.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return recordDir{dir}
}

func TestHostsOfLinks(t *testing.T) {
	t.Run("model", func(t *testing.T) {
		m := newModel()
		files := modelFiles{m}
		if err := files.mkdirAll(`C:\test`); err != nil {
			t.Fatal(err)
		}
		testLinkHost(t, m, files, `C:\test`)
	})
	t.Run("this machine", func(t *testing.T) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		testLinkHost(t, localLinks(t), osFiles{}, dir)
	})
}

// testLinkHost tests the operations of a linkHost. All hosts pass it.
func testLinkHost(t *testing.T, h linkHost, files benchFiles, dir string) {
	form := h.form()
	if clean, err := form.clean(dir); err != nil || clean != dir {
		t.Fatalf("the directory of the test: %q, %v, want %q", clean, err, dir)
	}
	path := func(names ...string) string { return form.join(dir, names...) }
	kind := func(path string) entryKind {
		t.Helper()
		e, err := h.look(path)
		if err != nil {
			t.Fatal(err)
		}
		return e.kind
	}
	want := func(call string, err, want error) {
		t.Helper()
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", call, err, want)
		}
	}
	anyError := func(call string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: want an error", call)
		}
	}
	source := path("source")
	want("mkdir", h.mkdir(source), nil)
	want("mkdir again", h.mkdir(source), fs.ErrExist)
	if err := errors.Join(files.writeFile(path("file"), "content"), files.mkdirAll(path("full", "child"))); err != nil {
		t.Fatal(err)
	}
	if d, f := kind(source), kind(path("file")); d != plainDir || f != plainFile {
		t.Errorf("got %v and %v, want a directory and a file", d, f)
	}
	_, err := h.look(path("missing"))
	want("look at a missing entry", err, fs.ErrNotExist)
	_, err = h.look(path("missing", "child"))
	want("look in a missing directory", err, fs.ErrNotExist)
	_, err = h.names(path("missing"))
	want("names of a missing directory", err, fs.ErrNotExist)

	want("link", h.link(source, path("link")), nil)
	if e, err := h.look(path("link")); err != nil || e != (linkEntry{dirLink, source}) {
		t.Errorf("link: got %+v, %v, want a link to %s", e, err, source)
	}
	// Not yet there: the link is for directories, all the same.
	want("link to a missing source", h.link(path("away"), path("dangling")), nil)
	if e, err := h.look(path("dangling")); err != nil || e != (linkEntry{dirLink, path("away")}) {
		t.Errorf("dangling link: got %+v, %v", e, err)
	}
	for _, name := range []string{"link", "file", "source", "dangling"} {
		want("link at "+name, h.link(source, path(name)), fs.ErrExist)
	}
	if err := files.writeFile(path("link", "through"), "content"); err != nil || kind(path("source", "through")) != plainFile {
		t.Errorf("a file through the link: %v", err)
	}
	if names, err := h.names(source); err != nil || !slices.Equal(names, []string{"through"}) {
		t.Errorf("names: got %q, %v", names, err)
	}

	anyError("rmdir of a link", h.rmdir(path("link")))
	anyError("rmdir of a file", h.rmdir(path("file")))
	want("rmdir of a full directory", h.rmdir(path("full")), ErrNotEmpty)
	want("rmdir of a missing directory", h.rmdir(path("missing")), fs.ErrNotExist)
	anyError("unlink of a directory", h.unlink(path("full", "child")))
	anyError("unlink of a file", h.unlink(path("file")))
	want("unlink of a missing link", h.unlink(path("missing")), fs.ErrNotExist)
	want("unlink", h.unlink(path("link")), nil)
	want("unlink of a dangling link", h.unlink(path("dangling")), nil)
	want("rmdir", h.rmdir(path("full", "child")), nil)
	if names, err := h.names(dir); err != nil || len(names) != 3 { // source, file, full
		t.Errorf("at the end: got %q, %v", names, err)
	}
	if kind(path("source", "through")) != plainFile {
		t.Error("the files of the source are gone")
	}
	if u, err := h.usage(source); err != nil || u.TotalBytes <= 0 || u.AvailableBytes < 0 || u.UsedBytes <= 0 {
		t.Errorf("usage: got %+v, %v", u, err)
	}
}

// flow is a call on a bench with a state before it.
type flow struct {
	prepare func(b *bench)
	call    func(b *bench) error
	// mounts: the call mounts the volume v at the target. Otherwise nothing is mounted after it.
	mounts bool
}

// target is the path of the flows.
func (b *bench) target() string {
	return b.path("pods", "u", "volumes", "kubernetes.io~csi", "pv", "mount")
}

// known returns the Mount of a volume that exists.
func (b *bench) known(name string) Mount {
	return Mount{Kind: Directory, Source: b.files.join(b.storage, name)}
}

func mountAtTarget(b *bench) error { return b.Mount(context.Background(), b.known("v"), b.target()) }

var flows = map[string]flow{
	"mount":                  {call: mountAtTarget, mounts: true},
	"mount over a directory": {prepare: func(b *bench) { b.mkdir(b.target()) }, call: mountAtTarget, mounts: true},
	"mount over a dead link": {call: mountAtTarget, mounts: true, prepare: func(b *bench) {
		b.mount(b.volume("old"), b.target())
		if err := b.files.remove(b.known("old").Source); err != nil {
			b.t.Fatal(err)
		}
	}},
	"unmount": {prepare: func(b *bench) { b.mount(b.known("v"), b.target()) },
		call: func(b *bench) error { return b.Unmount(context.Background(), b.target()) }},
	"remove": {prepare: func(b *bench) { b.mount(b.known("v"), b.target()) },
		call: func(b *bench) error { return b.Remove(context.Background(), b.target()) }},
}

// errStep is the error of an injected failure, and the value of the panic of an injected death.
var errStep = errors.New("injected")

// TestEveryStepOfALink: each change of the node fails, or the driver dies before or after it.
// Nothing is lost, the state is one of the two around the call, and a repeated call completes.
func TestEveryStepOfALink(t *testing.T) {
	for name, f := range flows {
		for _, way := range []string{"fails", "fails after its effect", "dies before", "dies after"} {
			for n := 1; ; n++ {
				reached := false
				t.Run(fmt.Sprintf("%s/%s/%d", name, way, n), func(t *testing.T) { reached = testStep(t, f, way, n) })
				if !reached {
					if n == 1 {
						t.Errorf("%s changes nothing", name)
					}
					break
				}
			}
		}
	}
}

// testStep lets the nth change of a call fail in a way. It reports whether there are so many.
func testStep(t *testing.T, f flow, way string, n int) bool {
	b, m, store := newModelBench(t)
	b.mkdir(windowsPaths.dir(b.target()))
	v := b.volume("v")
	precious := b.files.join(v.Source, "precious")
	b.mkdir(precious)
	if f.prepare != nil {
		f.prepare(b)
	}
	before := m.tree(b.kubelet)
	reached, died, err := inject(b, m, f.call, way, n)
	if died {
		b.Host = linksHost{startLinks(t, m, b.kubelet, store)}
	}
	mounted := b.mounted(v, b.target())
	e, _ := m.look(b.target())
	if isLink := e.kind == dirLink && e.text == v.Source; isLink != mounted {
		t.Errorf("mounted: %t, but the entry is %v %q", mounted, e.kind, e.text)
	}
	if users, err := b.MountPointsOf(v.Source); err != nil || mounted != (len(users) == 1) {
		t.Errorf("mounted: %t, but MountPointsOf = %q, %v", mounted, users, err)
	}
	if after := m.tree(b.kubelet); way == "fails" && err != nil && f.mounts && e.kind != plainDir &&
		!slices.Equal(before, after) {
		t.Errorf("after %v: got %q, want it unchanged: %q", err, after, before)
	}
	if err := f.call(b); err != nil {
		t.Fatalf("the repeated call: %v", err)
	}
	if got := b.mounted(v, b.target()); got != f.mounts {
		t.Errorf("after the repeated call: mounted: %t, want %t", got, f.mounts)
	}
	if err := b.Remove(context.Background(), b.target()); err != nil {
		t.Fatal(err)
	}
	if len(store.files) > 0 || b.files.exists(b.target()) || !b.files.exists(precious) {
		t.Errorf("at the end: records %q, target: %t, data: %t, want the data only", store.files,
			b.files.exists(b.target()), b.files.exists(precious))
	}
	return reached
}

// inject makes a call whose nth change fails in a way.
func inject(b *bench, m *model, call func(*bench) error, way string, n int) (reached, died bool, err error) {
	step := func(string, string) error {
		if n--; n != 0 {
			return nil
		}
		reached = true
		if strings.HasPrefix(way, "dies") {
			panic(errStep)
		}
		return errStep
	}
	if way == "fails" || way == "dies before" {
		m.before = step
	} else {
		m.after = step
	}
	defer func() { m.before, m.after = nil, nil }()
	defer func() {
		if p := recover(); p == any(errStep) {
			died = true
		} else if p != nil {
			panic(p)
		}
	}()
	err = call(b)
	return reached, false, err
}

// TestALinkIsVerified: the system call reports success, and has made something else (rule 4).
func TestALinkIsVerified(t *testing.T) {
	for name, made := range map[string]func(linkEntry) *linkEntry{
		"nothing":         func(linkEntry) *linkEntry { return nil },
		"a link of files": func(e linkEntry) *linkEntry { return &linkEntry{otherLink, e.text} },
		"another text":    func(e linkEntry) *linkEntry { return &linkEntry{dirLink, e.text + "x"} },
		"a directory":     func(linkEntry) *linkEntry { return &linkEntry{kind: plainDir} },
	} {
		t.Run(name, func(t *testing.T) {
			b, m, store := newModelBench(t)
			b.mkdir(windowsPaths.dir(b.target()))
			m.made = made
			if err := b.Mount(context.Background(), b.volume("v"), b.target()); err == nil {
				t.Error("Mount = nil")
			}
			if b.mounted(b.volume("v"), b.target()) || len(store.files) > 0 {
				t.Errorf("mounted: %t, records %q", b.mounted(b.volume("v"), b.target()), store.files)
			}
		})
	}
}

// TestLostRecords: the links on the disk are the mounts.
func TestLostRecords(t *testing.T) {
	b, m, store := newModelBench(t)
	ctx := context.Background()
	v, readOnly := b.volume("v"), b.volume("w")
	readOnly.ReadOnly = true
	staging := b.path("plugins", "kubernetes.io", "csi", "driver", "hash", "globalmount")
	other := b.path("pods", "u2", "volumes", "kubernetes.io~csi", "pv", "mount")
	for _, path := range []string{b.target(), staging, other} {
		b.mkdir(windowsPaths.dir(path))
	}
	b.mount(v, staging)
	b.mount(v, b.target())
	b.mount(readOnly, other)
	b.mkdir(b.path("pods", "u3", "volumes")) // a pod without volumes
	for name := range store.files {
		switch {
		case len(store.files) == 3:
			delete(store.files, name)
		default:
			store.files[name] = []byte("torn")
		}
	}
	b.Host = linksHost{startLinks(t, m, b.kubelet, store)}
	if len(store.files) > 0 {
		t.Errorf("torn records are kept: %q", store.files)
	}
	if got, err := b.MountPointsOf(v.Source); err != nil || !slices.Equal(got, []string{staging, b.target()}) &&
		!slices.Equal(got, []string{b.target(), staging}) {
		t.Errorf("MountPointsOf: got %q, %v", got, err)
	}
	if got, err := b.OtherTargets(ctx, staging); err != nil || !slices.Equal(got, []string{b.target()}) {
		t.Errorf("OtherTargets: got %q, %v", got, err)
	}
	b.refused(b.volume("another"), b.target(), ErrConflict)
	b.mount(readOnly, other) // which has a record again
	if len(store.files) != 1 {
		t.Errorf("records: %q, want one", store.files)
	}
	b.refused(b.volume("w"), other, ErrConflict)
	for _, path := range []string{b.target(), staging, other} {
		if err := b.Remove(ctx, path); err != nil {
			t.Error(err)
		}
	}
	if got, err := b.MountPointsOf(b.storage); err != nil || len(got) > 0 || len(store.files) > 0 {
		t.Errorf("at the end: %q, %v, records %q", got, err, store.files)
	}
}

// TestAForgottenPod: the kubelet may remove a pod's directory with a dangling link, and call no
// NodeUnpublishVolume.
func TestAForgottenPod(t *testing.T) {
	b, m, store := newModelBench(t)
	b.mkdir(windowsPaths.dir(b.target()))
	b.mount(b.volume("v"), b.target())
	if err := errors.Join(m.unlink(b.target()), m.rmdir(windowsPaths.dir(b.target()))); err != nil {
		t.Fatal(err)
	}
	if got, err := b.MountPointsOf(b.volume("v").Source); err != nil || len(got) > 0 {
		t.Errorf("MountPointsOf: got %q, %v", got, err)
	}
	b.Host = linksHost{startLinks(t, m, b.kubelet, store)}
	if len(store.files) > 0 {
		t.Errorf("records are left: %q", store.files)
	}
}

// TestAReplacedLink: another program has put another link at the path.
func TestAReplacedLink(t *testing.T) {
	b, m, _ := newModelBench(t)
	ctx := context.Background()
	b.mkdir(windowsPaths.dir(b.target()))
	v, w := b.volume("v"), b.volume("w")
	b.mount(v, b.target())
	if err := errors.Join(m.unlink(b.target()), m.link(w.Source, b.target())); err != nil {
		t.Fatal(err)
	}
	if b.mounted(v, b.target()) || b.mounted(w, b.target()) {
		t.Error("link and record disagree, and the path is mounted")
	}
	if occupied, err := b.Occupied(ctx, b.target()); !occupied || err != nil {
		t.Errorf("Occupied = %t, %v", occupied, err)
	}
	for _, m := range []Mount{v, w} { // a pod may write to either
		b.refused(m, b.target(), ErrConflict)
		if got, err := b.MountPointsOf(m.Source); err != nil || !slices.Equal(got, []string{b.target()}) {
			t.Errorf("MountPointsOf(%s) = %q, %v", m.Source, got, err)
		}
	}
	if err := b.Unmount(ctx, b.target()); err != nil {
		t.Fatal(err)
	}
	b.mount(v, b.target())
}

// TestADeadLink: the source of a mount is gone.
func TestADeadLink(t *testing.T) {
	b, m, _ := newModelBench(t)
	ctx := context.Background()
	b.mkdir(windowsPaths.dir(b.target()))
	v := b.volume("v")
	b.mount(v, b.target())
	if err := m.rmdir(v.Source); err != nil {
		t.Fatal(err)
	}
	if occupied, err := b.Occupied(ctx, b.target()); occupied || err != nil {
		t.Errorf("Occupied = %t, %v", occupied, err)
	}
	if _, err := b.Usage(ctx, b.target()); err == nil {
		t.Error("Usage of a dead link = nil")
	}
	b.mount(b.volume("w"), b.target())
	if !b.mounted(b.volume("w"), b.target()) {
		t.Error("the dead link was not replaced")
	}
}

// hungUsage is a system whose filesystems do not answer.
type hungUsage struct {
	linkHost
	begun chan string
	end   chan struct{}
}

func (h hungUsage) usage(path string) (Usage, error) {
	h.begun <- path
	<-h.end
	return Usage{}, nil
}

// TestUsageEndsWithItsContext, and holds one call of the system for each path.
func TestUsageEndsWithItsContext(t *testing.T) {
	b, m, store := newModelBench(t)
	b.mkdir(windowsPaths.dir(b.target()))
	v := b.volume("v")
	b.mount(v, b.target())
	host := hungUsage{m, make(chan string, 10), make(chan struct{})}
	defer close(host.end)
	l := startLinks(t, host, b.kubelet, store)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	for range 2 {
		go func() {
			_, err := l.Usage(ctx, b.target())
			result <- err
		}()
	}
	if path := <-host.begun; path != v.Source {
		t.Errorf("the usage of %s, want that of %s", path, v.Source)
	}
	cancel()
	for range 2 {
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("Usage = %v, want the end of its context", err)
		}
	}
	if n := len(host.begun); n > 0 {
		t.Errorf("%d calls more hang", n)
	}
	if err := l.Unmount(t.Context(), b.target()); err != nil {
		t.Error(err)
	}
}

// TestPathsOfOneTarget: one path in the forms of the kubelet is one mount.
func TestPathsOfOneTarget(t *testing.T) {
	b, _, store := newModelBench(t)
	b.mkdir(windowsPaths.dir(b.target()))
	v := b.volume("v")
	for _, path := range []string{strings.TrimPrefix(b.target(), "C:"), "c" + b.target()[1:],
		strings.ReplaceAll(b.target(), `\`, "/"), strings.ToUpper(b.target())} {
		b.mount(v, path)
		if !b.mounted(v, path) || !b.mounted(v, b.target()) || len(store.files) != 1 {
			t.Errorf("%s: mounted: %t; records %q", path, b.mounted(v, path), store.files)
		}
	}
	got, err := b.MountPointsOf(strings.ToLower(v.Source))
	if err != nil || len(got) != 1 {
		t.Errorf("MountPointsOf: got %q, %v", got, err)
	}
}

// TestForeignLinks: links into the kubelet directory, and other reparse points, are of other
// programs.
func TestForeignLinks(t *testing.T) {
	for name, e := range map[string]linkEntry{
		"a link into the kubelet directory": {dirLink, `c:\VAR\lib\kubelet\pods`},
		"a link of files":                   {otherLink, `D:\causeway\v`},
		"a junction":                        {otherLink, `D:\causeway\v`},
		"a link to a share without its end": {dirLink, `\\srv\share\v`},
		"a link to a device":                {dirLink, `\\?\UNC\srv\share\`},
		"a relative link":                   {dirLink, `..\..\v`},
	} {
		t.Run(name, func(t *testing.T) {
			b, m, _ := newModelBench(t)
			ctx := context.Background()
			b.mkdir(windowsPaths.dir(b.target()))
			m.made = func(linkEntry) *linkEntry { return &e }
			if err := m.link("", b.target()); err != nil {
				t.Fatal(err)
			}
			m.made = nil
			before := m.tree(b.kubelet)
			b.refused(b.volume("v"), b.target(), ErrPath)
			_, mountedErr := b.Mounted(ctx, b.volume("v"), b.target())
			_, occupiedErr := b.Occupied(ctx, b.target())
			for call, err := range map[string]error{"Unmount": b.Unmount(ctx, b.target()),
				"Remove": b.Remove(ctx, b.target()), "Mounted": mountedErr, "Occupied": occupiedErr} {
				if !errors.Is(err, ErrPath) {
					t.Errorf("%s = %v, want ErrPath", call, err)
				}
			}
			if after := m.tree(b.kubelet); !slices.Equal(before, after) {
				t.Errorf("got %q, want it unchanged: %q", after, before)
			}
		})
	}
}

// TestAnOpenDirectory: a directory that a process has open is not removed, and Mount changes
// nothing.
func TestAnOpenDirectory(t *testing.T) {
	b, m, store := newModelBench(t)
	b.mkdir(b.target())
	_, node, err := m.find(b.target())
	if err != nil {
		t.Fatal(err)
	}
	node.open = true
	b.refused(b.volume("v"), b.target(), ErrBusy)
	if len(store.files) > 0 {
		t.Errorf("records: %q", store.files)
	}
	node.open = false
	b.mount(b.volume("v"), b.target())
	if _, node, err = m.find(b.target()); err != nil {
		t.Fatal(err)
	}
	node.open = true
	if err := b.Unmount(context.Background(), b.target()); !errors.Is(err, ErrBusy) || !b.mounted(b.volume("v"), b.target()) {
		t.Errorf("Unmount = %v", err)
	}
}

// TestSourcesOfLinks: a source in the kubelet directory, or a file, is no source.
func TestSourcesOfLinks(t *testing.T) {
	b, _, _ := newModelBench(t)
	b.mkdir(b.path("unmounted"))
	if err := b.files.writeFile(b.files.join(b.storage, "file"), ""); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{b.path("unmounted"), b.kubelet, `D:\`, b.files.join(b.storage, "file"), `\\server\share\`,
		`relative`} {
		b.refused(Mount{Kind: Directory, Source: source}, b.path("target"), ErrPath)
	}
	for _, kind := range []Kind{Image, Disk, Device, BlockDevice, Share} {
		b.refused(Mount{Kind: kind, Source: b.volume("v").Source, FSType: "ext4"}, b.path("target"), errors.ErrUnsupported)
	}
	if b.files.exists(b.path("target")) {
		t.Error("the path was left behind")
	}
}

// TestAnUnreadablePath: a link of a lost record may be there, so nothing may be deleted until the
// path can be read. The driver starts.
func TestAnUnreadablePath(t *testing.T) {
	b, m, store := newModelBench(t)
	v, other := b.volume("v"), b.volume("w")
	b.mkdir(windowsPaths.dir(b.target()))
	b.mount(v, b.target())
	clear(store.files)
	m.unreadable = b.target()
	b.Host = linksHost{startLinks(t, m, b.kubelet, store)}
	for _, source := range []string{v.Source, other.Source} {
		if got, err := b.MountPointsOf(source); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "error 5") {
			t.Errorf("MountPointsOf(%s) = %q, %v, want ErrBusy", source, got, err)
		}
	}
	m.unreadable = ""
	if got, err := b.MountPointsOf(v.Source); err != nil || !slices.Equal(got, []string{b.target()}) {
		t.Errorf("MountPointsOf = %q, %v", got, err)
	}
	if got, err := b.MountPointsOf(other.Source); err != nil || len(got) > 0 {
		t.Errorf("MountPointsOf = %q, %v", got, err)
	}
}

// TestTheWalkEnds: more paths than a node can have are an error, and no record is lost silently.
func TestTheWalkEnds(t *testing.T) {
	b, m, _ := newModelBench(t)
	l := &links{host: m, kubelet: b.kubelet, pathForm: windowsPaths}
	n := maxAdopted
	if err := l.walk(b.kubelet, targetPaths, &n); err == nil {
		t.Error("the walk has no end")
	}
}

func TestSupports(t *testing.T) {
	linux, windows := NewFake(t.TempDir()), linksHost{}
	for _, tc := range []struct {
		kind           Kind
		fsType, option string
		linux, windows bool
	}{
		{Directory, "", "ro", true, true}, {Directory, "", "noatime", true, false}, {Directory, "", "x", false, false},
		{Image, "ext4", "rw", true, false}, {Image, "xfs", "largeio", true, false},
		{Image, "ext4", "largeio", false, false}, {Image, "ntfs", "ro", false, true},
		{Image, "ntfs", "noatime", false, false}, {Image, "", "ro", false, false},
		{Disk, "", "", true, false}, {Disk, "", "ro", false, false},
		{BlockDevice, "", "", true, false}, {BlockDevice, "xfs", "noatime", true, false},
		{BlockDevice, "ntfs", "rw", false, true},
		{Share, "", "seal", true, true}, {Share, "", "seal=1", false, false}, {Share, "", "uid=1000", true, true},
		{Share, "", "guest", true, false}, {Share, "", "sec=krb5", true, false}, {Share, "", "sec=ntlmssp", true, true},
		{Share, "", "vers=3.1.1", true, false}, {Share, "", "sign", true, false}, {Share, "", "noatime", true, false},
	} {
		var options []string
		if tc.option != "" {
			options = append(options, tc.option)
		}
		for name, c := range map[string]struct {
			host Images
			want bool
		}{"Linux": {linux, tc.linux}, "Windows": {windows, tc.windows}} {
			err := c.host.Supports(tc.kind, tc.fsType, options)
			if (err == nil) != c.want || err != nil && (!errors.Is(err, errors.ErrUnsupported) ||
				!strings.Contains(err.Error(), name)) {
				t.Errorf("Supports(%s, %s, %s) on %s = %v, want it: %t", tc.kind, tc.fsType, tc.option, name, err, c.want)
			}
		}
		if err := CheckOptions(tc.kind, tc.fsType, options); tc.option != "" && (err == nil) != (tc.linux || tc.windows) {
			t.Errorf("CheckOptions(%s, %s, %s) = %v, want it: %t", tc.kind, tc.fsType, tc.option, err, tc.linux)
		}
	}
}

// TestImagesAreRefused: a system without a library for disks.
func TestImagesAreRefused(t *testing.T) {
	b, m, store := newModelBench(t)
	l, err := newLinks(m, b.kubelet, store)
	if err != nil {
		t.Fatal(err)
	}
	b.Host = linksHost{l}
	ctx := context.Background()
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, sizeErr := b.ImageSize(file.Name())
	for call, err := range map[string]error{
		"MakeImage": b.MakeImage(ctx, file.Name(), 1, "ntfs"),
		"GrowImage": b.GrowImage(ctx, file.Name(), 1),
		"ImageSize": sizeErr,
		"NewUUID":   b.NewUUID(ctx, file, "ntfs", 0),
		"Supports":  b.Supports(Image, "ntfs", nil),
		"Freeze":    b.Freeze(ctx, "", []string{file.Name()}, 1, func(context.Context) error { return nil }),
	} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "kind directory") {
			t.Errorf("%s = %v, want ErrUnsupported with a remedy", call, err)
		}
	}
}
