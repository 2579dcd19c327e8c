package links

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

func TestLinksOverAModelKeepTheContract(t *testing.T) {
	mountercontract.TestMounter(t, func(t *testing.T) *mountercontract.Bench {
		b, _, _ := newModelBench(t)
		return b.Bench
	})
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
	return b.Path("pods", "u", "volumes", "kubernetes.io~csi", "pv", "mount")
}

// known returns the Mount of a volume that exists.
func (b *bench) known(name string) mounter.Mount {
	return mounter.Mount{Kind: mounter.Directory, Source: b.Files.Join(b.Storage, name)}
}

func mountAtTarget(b *bench) error { return b.Mount(context.Background(), b.known("v"), b.target()) }

var flows = map[string]flow{
	"mount":                  {call: mountAtTarget, mounts: true},
	"mount over a directory": {prepare: func(b *bench) { b.Mkdir(b.target()) }, call: mountAtTarget, mounts: true},
	"mount over a dead link": {call: mountAtTarget, mounts: true, prepare: func(b *bench) {
		b.MustMount(b.Volume("old"), b.target())
		if err := b.Files.Remove(b.known("old").Source); err != nil {
			b.T.Fatal(err)
		}
	}},
	"unmount": {prepare: func(b *bench) { b.MustMount(b.known("v"), b.target()) },
		call: func(b *bench) error { return b.Unmount(context.Background(), b.target()) }},
	"remove": {prepare: func(b *bench) { b.MustMount(b.known("v"), b.target()) },
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
	b.Mkdir(WindowsPaths.dir(b.target()))
	v := b.Volume("v")
	precious := b.Files.Join(v.Source, "precious")
	b.Mkdir(precious)
	if f.prepare != nil {
		f.prepare(b)
	}
	before := m.tree(b.Kubelet)
	reached, died, err := inject(b, m, f.call, way, n)
	if died {
		b.Host = Host{startLinks(t, m, b.Kubelet, store)}
	}
	mounted := b.IsMounted(v, b.target())
	e, _ := m.Entry(b.target())
	if isLink := e.Kind == DirLink && e.Text == v.Source; isLink != mounted {
		t.Errorf("mounted: %t, but the entry is %v %q", mounted, e.Kind, e.Text)
	}
	if users, err := b.MountPointsOf(v.Source); err != nil || mounted != (len(users) == 1) {
		t.Errorf("mounted: %t, but MountPointsOf = %q, %v", mounted, users, err)
	}
	if after := m.tree(b.Kubelet); way == "fails" && err != nil && f.mounts && e.Kind != PlainDir &&
		!slices.Equal(before, after) {
		t.Errorf("after %v: got %q, want it unchanged: %q", err, after, before)
	}
	if err := f.call(b); err != nil {
		t.Fatalf("the repeated call: %v", err)
	}
	if got := b.IsMounted(v, b.target()); got != f.mounts {
		t.Errorf("after the repeated call: mounted: %t, want %t", got, f.mounts)
	}
	if err := b.Remove(context.Background(), b.target()); err != nil {
		t.Fatal(err)
	}
	if len(store.files) > 0 || b.Files.Exists(b.target()) || !b.Files.Exists(precious) {
		t.Errorf("at the end: records %q, target: %t, data: %t, want the data only", store.files,
			b.Files.Exists(b.target()), b.Files.Exists(precious))
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
	for name, made := range map[string]func(LinkEntry) *LinkEntry{
		"nothing":         func(LinkEntry) *LinkEntry { return nil },
		"a link of files": func(e LinkEntry) *LinkEntry { return &LinkEntry{OtherLink, e.Text} },
		"another text":    func(e LinkEntry) *LinkEntry { return &LinkEntry{DirLink, e.Text + "x"} },
		"a directory":     func(LinkEntry) *LinkEntry { return &LinkEntry{Kind: PlainDir} },
	} {
		t.Run(name, func(t *testing.T) {
			b, m, store := newModelBench(t)
			b.Mkdir(WindowsPaths.dir(b.target()))
			m.made = made
			if err := b.Mount(context.Background(), b.Volume("v"), b.target()); err == nil {
				t.Error("Mount = nil")
			}
			if b.IsMounted(b.Volume("v"), b.target()) || len(store.files) > 0 {
				t.Errorf("mounted: %t, records %q", b.IsMounted(b.Volume("v"), b.target()), store.files)
			}
		})
	}
}

// TestLostRecords: the links on the disk are the mounts.
func TestLostRecords(t *testing.T) {
	b, m, store := newModelBench(t)
	ctx := context.Background()
	v, readOnly := b.Volume("v"), b.Volume("w")
	readOnly.ReadOnly = true
	staging := b.Path("plugins", "kubernetes.io", "csi", "driver", "hash", "globalmount")
	other := b.Path("pods", "u2", "volumes", "kubernetes.io~csi", "pv", "mount")
	for _, path := range []string{b.target(), staging, other} {
		b.Mkdir(WindowsPaths.dir(path))
	}
	b.MustMount(v, staging)
	b.MustMount(v, b.target())
	b.MustMount(readOnly, other)
	b.Mkdir(b.Path("pods", "u3", "volumes")) // a pod without volumes
	for name := range store.files {
		switch {
		case len(store.files) == 3:
			delete(store.files, name)
		default:
			store.files[name] = []byte("torn")
		}
	}
	b.Host = Host{startLinks(t, m, b.Kubelet, store)}
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
	b.Refused(b.Volume("another"), b.target(), mounter.ErrConflict)
	b.MustMount(readOnly, other) // which has a record again
	if len(store.files) != 1 {
		t.Errorf("records: %q, want one", store.files)
	}
	b.Refused(b.Volume("w"), other, mounter.ErrConflict)
	for _, path := range []string{b.target(), staging, other} {
		if err := b.Remove(ctx, path); err != nil {
			t.Error(err)
		}
	}
	if got, err := b.MountPointsOf(b.Storage); err != nil || len(got) > 0 || len(store.files) > 0 {
		t.Errorf("at the end: %q, %v, records %q", got, err, store.files)
	}
}

// TestAForgottenPod: the kubelet may remove a pod's directory with a dangling link, and call no
// NodeUnpublishVolume.
func TestAForgottenPod(t *testing.T) {
	b, m, store := newModelBench(t)
	b.Mkdir(WindowsPaths.dir(b.target()))
	b.MustMount(b.Volume("v"), b.target())
	if err := errors.Join(m.Unlink(b.target()), m.Rmdir(WindowsPaths.dir(b.target()))); err != nil {
		t.Fatal(err)
	}
	if got, err := b.MountPointsOf(b.Volume("v").Source); err != nil || len(got) > 0 {
		t.Errorf("MountPointsOf: got %q, %v", got, err)
	}
	b.Host = Host{startLinks(t, m, b.Kubelet, store)}
	if len(store.files) > 0 {
		t.Errorf("records are left: %q", store.files)
	}
}

// TestAReplacedLink: another program has put another link at the path.
func TestAReplacedLink(t *testing.T) {
	b, m, _ := newModelBench(t)
	ctx := context.Background()
	b.Mkdir(WindowsPaths.dir(b.target()))
	v, w := b.Volume("v"), b.Volume("w")
	b.MustMount(v, b.target())
	if err := errors.Join(m.Unlink(b.target()), m.Link(w.Source, b.target())); err != nil {
		t.Fatal(err)
	}
	if b.IsMounted(v, b.target()) || b.IsMounted(w, b.target()) {
		t.Error("link and record disagree, and the path is mounted")
	}
	if occupied, err := b.Occupied(ctx, b.target()); !occupied || err != nil {
		t.Errorf("Occupied = %t, %v", occupied, err)
	}
	for _, m := range []mounter.Mount{v, w} { // a pod may write to either
		b.Refused(m, b.target(), mounter.ErrConflict)
		if got, err := b.MountPointsOf(m.Source); err != nil || !slices.Equal(got, []string{b.target()}) {
			t.Errorf("MountPointsOf(%s) = %q, %v", m.Source, got, err)
		}
	}
	if err := b.Unmount(ctx, b.target()); err != nil {
		t.Fatal(err)
	}
	b.MustMount(v, b.target())
}

// TestADeadLink: the source of a mount is gone.
func TestADeadLink(t *testing.T) {
	b, m, _ := newModelBench(t)
	ctx := context.Background()
	b.Mkdir(WindowsPaths.dir(b.target()))
	v := b.Volume("v")
	b.MustMount(v, b.target())
	if err := m.Rmdir(v.Source); err != nil {
		t.Fatal(err)
	}
	if occupied, err := b.Occupied(ctx, b.target()); occupied || err != nil {
		t.Errorf("Occupied = %t, %v", occupied, err)
	}
	if _, err := b.Usage(ctx, b.target()); err == nil {
		t.Error("Usage of a dead link = nil")
	}
	b.MustMount(b.Volume("w"), b.target())
	if !b.IsMounted(b.Volume("w"), b.target()) {
		t.Error("the dead link was not replaced")
	}
}

// hungUsage is a system whose filesystems do not answer.
type hungUsage struct {
	LinkHost
	begun chan string
	end   chan struct{}
}

func (h hungUsage) Usage(path string) (mounter.Usage, error) {
	h.begun <- path
	<-h.end
	return mounter.Usage{}, nil
}

// TestUsageEndsWithItsContext, and holds one call of the system for each path.
func TestUsageEndsWithItsContext(t *testing.T) {
	b, m, store := newModelBench(t)
	b.Mkdir(WindowsPaths.dir(b.target()))
	v := b.Volume("v")
	b.MustMount(v, b.target())
	host := hungUsage{m, make(chan string, 10), make(chan struct{})}
	defer close(host.end)
	l := startLinks(t, host, b.Kubelet, store)
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
	b.Mkdir(WindowsPaths.dir(b.target()))
	v := b.Volume("v")
	for _, path := range []string{strings.TrimPrefix(b.target(), "C:"), "c" + b.target()[1:],
		strings.ReplaceAll(b.target(), `\`, "/"), strings.ToUpper(b.target())} {
		b.MustMount(v, path)
		if !b.IsMounted(v, path) || !b.IsMounted(v, b.target()) || len(store.files) != 1 {
			t.Errorf("%s: mounted: %t; records %q", path, b.IsMounted(v, path), store.files)
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
	for name, e := range map[string]LinkEntry{
		"a link into the kubelet directory": {DirLink, `c:\VAR\lib\kubelet\pods`},
		"a link of files":                   {OtherLink, `D:\causeway\v`},
		"a junction":                        {OtherLink, `D:\causeway\v`},
		"a link to a share without its end": {DirLink, `\\srv\share\v`},
		"a link to a device":                {DirLink, `\\?\UNC\srv\share\`},
		"a relative link":                   {DirLink, `..\..\v`},
	} {
		t.Run(name, func(t *testing.T) {
			b, m, _ := newModelBench(t)
			ctx := context.Background()
			b.Mkdir(WindowsPaths.dir(b.target()))
			m.made = func(LinkEntry) *LinkEntry { return &e }
			if err := m.Link("", b.target()); err != nil {
				t.Fatal(err)
			}
			m.made = nil
			before := m.tree(b.Kubelet)
			b.Refused(b.Volume("v"), b.target(), mounter.ErrPath)
			_, mountedErr := b.Mounted(ctx, b.Volume("v"), b.target())
			_, occupiedErr := b.Occupied(ctx, b.target())
			for call, err := range map[string]error{"Unmount": b.Unmount(ctx, b.target()),
				"Remove": b.Remove(ctx, b.target()), "Mounted": mountedErr, "Occupied": occupiedErr} {
				if !errors.Is(err, mounter.ErrPath) {
					t.Errorf("%s = %v, want ErrPath", call, err)
				}
			}
			if after := m.tree(b.Kubelet); !slices.Equal(before, after) {
				t.Errorf("got %q, want it unchanged: %q", after, before)
			}
		})
	}
}

// TestAnOpenDirectory: a directory that a process has open is not removed, and Mount changes
// nothing.
func TestAnOpenDirectory(t *testing.T) {
	b, m, store := newModelBench(t)
	b.Mkdir(b.target())
	_, node, err := m.find(b.target())
	if err != nil {
		t.Fatal(err)
	}
	node.open = true
	b.Refused(b.Volume("v"), b.target(), mounter.ErrBusy)
	if len(store.files) > 0 {
		t.Errorf("records: %q", store.files)
	}
	node.open = false
	b.MustMount(b.Volume("v"), b.target())
	if _, node, err = m.find(b.target()); err != nil {
		t.Fatal(err)
	}
	node.open = true
	if err := b.Unmount(context.Background(), b.target()); !errors.Is(err, mounter.ErrBusy) ||
		!b.IsMounted(b.Volume("v"), b.target()) {
		t.Errorf("Unmount = %v", err)
	}
}

// TestSourcesOfLinks: a source in the kubelet directory, or a file, is no source.
func TestSourcesOfLinks(t *testing.T) {
	b, _, _ := newModelBench(t)
	b.Mkdir(b.Path("unmounted"))
	if err := b.Files.WriteFile(b.Files.Join(b.Storage, "file"), ""); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{b.Path("unmounted"), b.Kubelet, `D:\`, b.Files.Join(b.Storage, "file"),
		`\\server\share\`,
		`relative`} {
		b.Refused(mounter.Mount{Kind: mounter.Directory, Source: source}, b.Path("target"), mounter.ErrPath)
	}
	for _, kind := range []mounter.Kind{mounter.Image, mounter.Disk, mounter.Device, mounter.BlockDevice,
		mounter.Share} {
		b.Refused(mounter.Mount{Kind: kind, Source: b.Volume("v").Source, FSType: "ext4"}, b.Path("target"),
			errors.ErrUnsupported)
	}
	if b.Files.Exists(b.Path("target")) {
		t.Error("the path was left behind")
	}
}

// TestAnUnreadablePath: a link of a lost record may be there, so nothing may be deleted until the
// path can be read. The driver starts.
func TestAnUnreadablePath(t *testing.T) {
	b, m, store := newModelBench(t)
	v, other := b.Volume("v"), b.Volume("w")
	b.Mkdir(WindowsPaths.dir(b.target()))
	b.MustMount(v, b.target())
	clear(store.files)
	m.unreadable = b.target()
	b.Host = Host{startLinks(t, m, b.Kubelet, store)}
	for _, source := range []string{v.Source, other.Source} {
		if got, err := b.MountPointsOf(source); !errors.Is(err, mounter.ErrBusy) || !strings.Contains(err.Error(),
			"error 5") {
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
	l := &links{host: m, kubelet: b.Kubelet, PathForm: WindowsPaths}
	n := maxAdopted
	if err := l.walk(b.Kubelet, targetPaths, &n); err == nil {
		t.Error("the walk has no end")
	}
}

func TestSupports(t *testing.T) {
	linux, windows := mounter.Linux, Host{}
	for _, tc := range []struct {
		kind           mounter.Kind
		fsType, option string
		linux, windows bool
	}{
		{mounter.Directory, "", "ro", true, true}, {mounter.Directory, "", "noatime", true, false}, {mounter.Directory,
			"", "x", false, false},
		{mounter.Image, "ext4", "rw", true, false}, {mounter.Image, "xfs", "largeio", true, false},
		{mounter.Image, "ext4", "largeio", false, false}, {mounter.Image, "ntfs", "ro", false, true},
		{mounter.Image, "ntfs", "noatime", false, false}, {mounter.Image, "", "ro", false, false},
		{mounter.Disk, "", "", true, false}, {mounter.Disk, "", "ro", false, false},
		{mounter.BlockDevice, "", "", true, false}, {mounter.BlockDevice, "xfs", "noatime", true, false},
		{mounter.BlockDevice, "ntfs", "rw", false, true},
		{mounter.Share, "", "seal", true, true}, {mounter.Share, "", "seal=1", false, false}, {mounter.Share, "",
			"uid=1000", true, true},
		{mounter.Share, "", "guest", true, false}, {mounter.Share, "", "sec=krb5", true, false}, {mounter.Share, "",
			"sec=ntlmssp", true, true},
		{mounter.Share, "", "vers=3.1.1", true, false}, {mounter.Share, "", "sign", true, false}, {mounter.Share, "",
			"noatime", true, false},
	} {
		var options []string
		if tc.option != "" {
			options = append(options, tc.option)
		}
		for name, c := range map[string]struct {
			host interface {
				Supports(k mounter.Kind, fsType string, options []string) error
			}
			want bool
		}{"Linux": {linux, tc.linux}, "Windows": {windows, tc.windows}} {
			err := c.host.Supports(tc.kind, tc.fsType, options)
			if (err == nil) != c.want || err != nil && (!errors.Is(err, errors.ErrUnsupported) ||
				!strings.Contains(err.Error(), name)) {
				t.Errorf("Supports(%s, %s, %s) on %s = %v, want it: %t", tc.kind, tc.fsType, tc.option, name, err,
					c.want)
			}
		}
		if err := mounter.CheckOptions(tc.kind, tc.fsType, options); tc.option != "" && (err == nil) != (tc.linux ||
			tc.windows) {
			t.Errorf("CheckOptions(%s, %s, %s) = %v, want it: %t", tc.kind, tc.fsType, tc.option, err, tc.linux)
		}
	}
}

// TestImagesAreRefused: a system without a library for disks.
func TestImagesAreRefused(t *testing.T) {
	b, m, store := newModelBench(t)
	l, err := newLinks(m, b.Kubelet, store)
	if err != nil {
		t.Fatal(err)
	}
	b.Host = Host{l}
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
		"Supports":  b.Supports(mounter.Image, "ntfs", nil),
		"Freeze":    b.Freeze(ctx, "", []string{file.Name()}, 1, func(context.Context) error { return nil }),
	} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "kind directory") {
			t.Errorf("%s = %v, want ErrUnsupported with a remedy", call, err)
		}
	}
}
