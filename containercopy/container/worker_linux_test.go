package container

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/internal/pod"
	"github.com/causeway-csi/causeway/containercopy/place"
	"github.com/causeway-csi/causeway/containercopy/wire"
	"github.com/causeway-csi/causeway/containercopy/worker"
	"github.com/causeway-csi/causeway/internal/await"
)

// node is this machine. The test may not be permitted to read the namespaces of its first process.
var node = Node{"/proc", os.Getpid()}

// program is the program of workers; its directory is made by TestMain.
var program Program

func TestMain(m *testing.M) {
	pod.Main(func(workers string) int {
		program = Program{Root: workers, Name: "worker", Stderr: os.Stderr}
		return m.Run()
	})
}

// startContainer starts a container, and opens it. end ends its first process.
func startContainer(t *testing.T, p pod.Pod) (c *Container, end func()) {
	t.Helper()
	running := pod.Start(t, p)
	c, err := node.Open(running.PID, ":/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, running.End
}

// start starts a worker until the end of the test.
func start(t *testing.T, c *Container, s worker.Spec) (*Worker, *wire.Stream) {
	t.Helper()
	if s.Limits == (archive.Limits{}) {
		s.Limits = archive.DefaultLimits()
	}
	w, err := c.Start(program, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, w) })
	return w, wire.NewStream(w)
}

// stop ends a worker, and waits longer than Stop does.
func stop(t *testing.T, w *Worker) {
	t.Helper()
	await.True(t, "the worker ends", w.Stop)
}

// copyFrom returns the entries of a copy, as "name=content".
func copyFrom(t *testing.T, c *Container, path string) (map[string]string, error) {
	t.Helper()
	w, s := start(t, c, worker.Spec{From: true, Path: path})
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	digest, body := archive.NewDigest(false), s.Body(nil)
	_, err = archive.Unpack(context.Background(), io.TeeReader(body, digest), root, archive.UnpackOptions{Limits: archive.DefaultLimits(), Links: true})
	if err != nil {
		return nil, err
	}
	end, err := body.End()
	if err != nil {
		return nil, err
	}
	sum, err := end.Sum()
	if err := errors.Join(err, digest.Sum().Check(sum), s.Send(wire.Message{Type: wire.Ack})); err != nil {
		return nil, err
	}
	if _, err := s.Await(wire.Result, nil); err != nil {
		return nil, err
	}
	stop(t, w)
	found := map[string]string{}
	err = fs.WalkDir(root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var content []byte
			content, err = root.ReadFile(p)
			found[p] = string(content)
		}
		return err
	})
	return found, err
}

// tarOf returns the stream of a file, or of a directory with the file "f".
func tarOf(t *testing.T, name, content string, inDirectory bool) []byte {
	t.Helper()
	top := filepath.Join(t.TempDir(), name)
	path := top
	if inDirectory {
		path = filepath.Join(top, "f")
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
	e, err := archive.OpenLocal(top)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var b bytes.Buffer
	if _, err := archive.Pack(context.Background(), &b, name, e, archive.PackOptions{Limits: archive.DefaultLimits()}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// copyTo sends a stream with an End message.
func copyTo(t *testing.T, c *Container, s worker.Spec, stream []byte, change ...func(end *wire.Message)) (wire.Message, error) {
	t.Helper()
	w, conn := start(t, c, s)
	digest := archive.NewDigest(false)
	digest.Write(stream)
	end := wire.EndOf(digest.Sum(), archive.Counts{})
	for _, f := range change {
		f(&end)
	}
	conn.Write(stream) // an error of the worker comes as its result
	conn.Send(end)
	m, err := conn.Await(wire.Result, nil)
	stop(t, w)
	return m, err
}

// list returns the names in a directory of the container.
func (c *Container) list(t *testing.T, path string) string {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d/%s", c.root, path))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, n := range names {
		all = append(all, n.Name())
	}
	return strings.Join(all, " ")
}

// pods are the containers that differ in the rights of a worker.
var pods = map[string]pod.Pod{"root": {}, "uid 1000": {UID: 1000}, "root of a user namespace": {First: 200000},
	"uid 1000 of a user namespace": {UID: 1000, First: 200000}}

// TestCopiesHaveTheRightsOfTheContainer, and no others: neither those of the node's root, nor
// fewer.
func TestCopiesHaveTheRightsOfTheContainer(t *testing.T) {
	for name, p := range pods {
		t.Run(name, func(t *testing.T) {
			c, _ := startContainer(t, p)
			if c.Identity.UID != p.UID {
				t.Fatalf("the identity: %+v", c.Identity)
			}
			found, err := copyFrom(t, c, "/etc/hostname")
			if err != nil || found["hostname"] != "of the container" {
				t.Errorf("got %q, %v", found, err)
			}
			found, err = copyFrom(t, c, "/etc")
			isRoot := p.UID == 0
			if isRoot && (err != nil || found["etc/shadow"] != "secret of the container") {
				t.Errorf("root got %q, %v", found, err)
			}
			if !isRoot && codeOf(err) != wire.PermissionDenied {
				t.Errorf("got %q, %v, want PERMISSION_DENIED", found, err)
			}
			for path, permitted := range map[string]bool{"/etc/new": isRoot, "/tmp/new": true, "/var/tmp/other": true, "/home/new": true} {
				m, err := copyTo(t, c, worker.Spec{Path: path}, tarOf(t, "s", "content", false))
				switch {
				case permitted && (err != nil || m.Path != path):
					t.Errorf("copy to %s: %+v, %v", path, m, err)
				case !permitted && codeOf(err) != wire.PermissionDenied:
					t.Errorf("copy to %s: %+v, %v, want PERMISSION_DENIED", path, m, err)
				}
			}
			if got := c.list(t, "tmp"); got != "new other" {
				t.Errorf("/tmp has %q", got)
			}
			var s unix.Stat_t
			if err := unix.Fstatat(c.root, "tmp/new", &s, unix.AT_SYMLINK_NOFOLLOW); err != nil || int(s.Uid) != p.First+p.UID {
				t.Errorf("the owner is %d, %v, want %d", s.Uid, err, p.First+p.UID)
			}
		})
	}
}

// TestAProcessThatPermitsNothing: its umask takes all permissions, and a copy still arrives.
func TestAProcessThatPermitsNothing(t *testing.T) {
	for name, p := range pods {
		t.Run(name, func(t *testing.T) {
			c, _ := startContainer(t, p)
			c.Identity.Umask = 0o777
			for path, spec := range map[string]worker.Spec{"/tmp/bare": {}, "/tmp/kept": {Mode: true}} {
				spec.Path = path
				if m, err := copyTo(t, c, spec, tarOf(t, "d", "content", true)); err != nil {
					t.Errorf("copy to %s: %+v, %v", path, m, err)
				}
			}
			for path, want := range map[string]uint32{"tmp/bare": 0, "tmp/bare/f": 0, "tmp/kept": 0o755, "tmp/kept/f": 0o644} {
				var s unix.Stat_t
				if err := unix.Fstatat(c.root, path, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil || s.Mode&0o7777 != want {
					t.Errorf("%s: mode %o, %v, want %o", path, s.Mode&0o7777, err, want)
				}
			}
		})
	}
}

// codeOf returns the code of a Result.
func codeOf(err error) wire.Code {
	var f *wire.Failure
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

// TestTheNodeIsOutOfReach of a copy from a container, by every path.
func TestTheNodeIsOutOfReach(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{})
	for path, want := range map[string]wire.Code{
		"/proc/1/root/etc/shadow": wire.PermissionDenied, "/proc/self/root": wire.NotFound, // it is in no PID namespace of the container
		"/proc/1/environ": wire.FailedPrecondition, "/proc": wire.FailedPrecondition, "/../../../usr": wire.NotFound,
		"etc/hostname": wire.InvalidArgument, "": wire.InvalidArgument, "/none": wire.NotFound, "/etc/hostname/x": wire.NotFound,
	} {
		if found, err := copyFrom(t, c, path); codeOf(err) != want {
			t.Errorf("%q: %q, %v, want %s", path, found, err, want)
		}
	}
	found, err := copyFrom(t, c, "/")
	if err != nil || found["root/etc/hostname"] != "of the container" || len(found) != 6 {
		t.Errorf("the whole container: %q, %v", found, err)
	}
}

// TestNothingAppearsAfterAnError of any kind.
func TestNothingAppearsAfterAnError(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{})
	if _, err := copyTo(t, c, worker.Spec{Path: "/tmp/old"}, tarOf(t, "s", "old", false)); err != nil {
		t.Fatal(err)
	}
	stream := tarOf(t, "s", "content", true)
	small := archive.DefaultLimits()
	small.Bytes = 1000
	for name, tc := range map[string]struct {
		spec   worker.Spec
		stream []byte
		change func(*wire.Message)
		want   wire.Code
	}{
		"checksum":                 {worker.Spec{Path: "/tmp/new"}, stream, func(m *wire.Message) { m.CRC32C++ }, wire.DataLoss},
		"size":                     {worker.Spec{Path: "/tmp/new"}, stream, func(m *wire.Message) { m.Size++ }, wire.DataLoss},
		"SHA-256":                  {worker.Spec{Path: "/tmp/new", SHA256: true}, stream, func(m *wire.Message) { m.SHA256 = strings.Repeat("00", 32) }, wire.DataLoss},
		"another than declared":    {worker.Spec{Path: "/tmp/new", Declared: &archive.Sum{Size: 1}}, stream, nil, wire.DataLoss},
		"a cut stream":             {worker.Spec{Path: "/tmp/new"}, stream[:700], nil, wire.InvalidArgument},
		"a stream without its end": {worker.Spec{Path: "/tmp/new"}, stream[:len(stream)-1024], nil, wire.InvalidArgument},
		"over the limit":           {worker.Spec{Path: "/tmp/new", Limits: small}, stream, nil, wire.OutOfRange},
		"an empty stream":          {worker.Spec{Path: "/tmp/new"}, nil, nil, wire.InvalidArgument},
		"existing":                 {worker.Spec{Path: "/tmp/old"}, tarOf(t, "s", "new", false), nil, wire.AlreadyExists},
		"over a file":              {worker.Spec{Path: "/tmp/old", Overwrite: place.Tree}, stream, nil, wire.FailedPrecondition},
		"kernel filesystem":        {worker.Spec{Path: "/proc/sys/kernel"}, stream, nil, wire.FailedPrecondition},
		"no parent":                {worker.Spec{Path: "/tmp/none/new"}, stream, nil, wire.NotFound},
		"an invalid message":       {worker.Spec{Path: "/tmp/new"}, stream, func(m *wire.Message) { m.Type = "nonsense" }, wire.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			change := tc.change
			if change == nil {
				change = func(*wire.Message) {}
			}
			if m, err := copyTo(t, c, tc.spec, tc.stream, change); codeOf(err) != tc.want {
				t.Errorf("got %+v, %v, want %s", m, err, tc.want)
			}
			if got := c.list(t, "tmp"); got != "old" {
				t.Errorf("/tmp has %q", got)
			}
		})
	}
	if found, err := copyFrom(t, c, "/tmp/old"); err != nil || found["old"] != "old" {
		t.Errorf("got %q, %v", found, err)
	}
}

// TestAParentBehindALink: as for the container, ".." is the parent of the target of a link.
func TestAParentBehindALink(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{})
	for _, path := range []string{"/var/tmp/../new", "/var/tmp/../tmp//other"} {
		if m, err := copyTo(t, c, worker.Spec{Path: path}, tarOf(t, "s", "x", false)); err != nil {
			t.Errorf("%s: %+v, %v", path, m, err)
		}
	}
	if got := c.list(t, "/"); !strings.Contains(got, " new ") || c.list(t, "var") != "tmp" || c.list(t, "tmp") != "other" {
		t.Errorf("/ has %q, /var %q, /tmp %q", got, c.list(t, "var"), c.list(t, "tmp"))
	}
}

// TestAReadOnlyRoot has an error of its own.
func TestAReadOnlyRoot(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{ReadOnly: true})
	if m, err := copyTo(t, c, worker.Spec{Path: "/tmp/new"}, tarOf(t, "s", "x", false)); codeOf(err) != wire.FailedPrecondition {
		t.Errorf("got %+v, %v, want FAILED_PRECONDITION", m, err)
	}
}

// stalled starts a copy to a container whose client stops in the middle.
func stalled(t *testing.T, c *Container) *Worker {
	t.Helper()
	w, s := start(t, c, worker.Spec{Path: "/tmp/new"})
	stream := tarOf(t, "s", strings.Repeat("x", 1<<20), false)
	if _, err := s.Write(stream[:512<<10]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Await(wire.Progress, nil); err != nil { // the staging directory exists
		t.Fatal(err)
	}
	if got := c.list(t, "tmp"); !strings.HasPrefix(got, ".kcopy-") {
		t.Fatalf("/tmp has %q", got)
	}
	return w
}

// TestTheEndOfAClient removes the unfinished copy.
func TestTheEndOfAClient(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{})
	w := stalled(t, c)
	stop(t, w)
	if got := c.list(t, "tmp"); got != "" {
		t.Errorf("left: %q", got)
	}
	if m, err := w.Read(); err == nil {
		t.Errorf("after the end: %q", m)
	}
}

// TestTheEndOfAContainer ends the worker, so that no descriptor keeps a volume in use.
func TestTheEndOfAContainer(t *testing.T) {
	c, end := startContainer(t, pod.Pod{})
	w := stalled(t, c)
	if c.Ended() {
		t.Fatal("Ended before the end")
	}
	end()
	if !c.Ended() {
		t.Error("Ended = false")
	}
	await.Receive(t, "the worker ends", w.Ended())
	late, err := c.Start(program, worker.Spec{From: true, Path: "/"})
	if err != nil {
		return // its root is gone
	}
	await.Receive(t, "a worker of a container that has ended ends", late.Ended())
	if !late.Gone() {
		t.Error("Gone = false")
	}
}

// TestACancellationAfterTheLastByte, which the worker has not read yet: nothing appears.
func TestACancellationAfterTheLastByte(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{})
	w, conn := start(t, c, worker.Spec{Path: "/tmp/new"})
	stream := tarOf(t, "s", "content", false)
	digest := archive.NewDigest(false)
	digest.Write(stream)
	if _, err := conn.Write(stream[:700]); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Await(wire.Progress, nil); err != nil { // the staging directory exists
		t.Fatal(err)
	}
	if err := unix.Kill(w.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(stream[700:]); err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(wire.EndOf(digest.Sum(), archive.Counts{})); err != nil {
		t.Fatal(err)
	}
	w.socket.Close()
	if err := unix.Kill(w.PID(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	<-w.Ended()
	if got := c.list(t, "tmp"); got != "" {
		t.Errorf("/tmp has %q", got)
	}
}

// TestAWorkerIsConfined: by /proc, in the middle of a copy.
func TestAWorkerIsConfined(t *testing.T) {
	for name, p := range pods {
		t.Run(name, func(t *testing.T) {
			c, _ := startContainer(t, p)
			w := stalled(t, c)
			of := fmt.Sprintf("/proc/%d/", w.PID())
			if root, err := os.Readlink(of + "root"); err != nil || root != program.Root {
				t.Errorf("its root is %s, %v, want %s", root, err, program.Root)
			}
			for _, ns := range []string{"user", "pid", "net", "ipc"} {
				mine, _ := os.Readlink("/proc/self/ns/" + ns)
				its, err := os.Readlink(of + "ns/" + ns)
				if theirs, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d/ns/%s", c.dir, ns)); err != nil || its == mine || its == theirs {
					t.Errorf("its namespace is %s, %v, that of the test %s, that of the container %s", its, err, mine, theirs)
				}
			}
			tasks, err := filepath.Glob(of + "task/*/status")
			if err != nil || len(tasks) < 2 {
				t.Fatalf("%d threads, %v", len(tasks), err)
			}
			capabilities := "0000000000000000"
			if p.UID == 0 {
				capabilities = "000000000000000f" // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER
			}
			for _, task := range tasks {
				status, err := os.ReadFile(task)
				if err != nil {
					t.Fatal(err)
				}
				for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t" + capabilities, "CapPrm:\t" + capabilities,
					"CapInh:\t0000000000000000", "CapAmb:\t0000000000000000"} {
					if !strings.Contains(string(status), line+"\n") {
						t.Errorf("%s has no line %q:\n%s", task, line, status)
					}
				}
			}
			for _, task := range tasks {
				status, err := os.ReadFile(task)
				if p.UID == 0 && !strings.Contains(string(status), "CapBnd:\t0000000000000000\n") {
					t.Errorf("%s has a bounding set, %v", task, err)
				}
			}
			fds, err := filepath.Glob(of + "fd/*")
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				if to, _ := os.Readlink(fd); to == "/proc" || to == "/" {
					t.Errorf("it has %s", to)
				}
			}
		})
	}
}

// TestMountsOfTheContainerStay: they are in another mount namespace than the worker, where the
// kernel protects no mount point of theirs.
func TestMountsOfTheContainerStay(t *testing.T) {
	for name, p := range map[string]pod.Pod{"root": {}, "root of a user namespace": {First: 200000}} {
		c, _ := startContainer(t, p)
		before, err := copyFrom(t, c, "/srv")
		if err != nil || before["srv/site/uploads/precious"] != "of the volume" || before["srv/hosts"] != "of the container" {
			t.Fatalf("%s: %q, %v", name, before, err)
		}
		for what, tc := range map[string]struct {
			path, name string
			dir        bool
			overwrite  place.Overwrite
		}{
			"a directory with a volume":  {"/srv", "site", true, place.Tree},
			"a volume":                   {"/srv", "data", true, place.Tree},
			"a volume, to add to it":     {"/srv", "data", true, place.Files},
			"a file that is a mount":     {"/srv", "hosts", false, place.Files},
			"a file, by its path":        {"/srv/hosts", "x", false, place.Tree},
			"the path with another name": {"/srv/../srv/site/.", "uploads", true, place.Tree},
		} {
			m, err := copyTo(t, c, worker.Spec{Path: tc.path, Overwrite: tc.overwrite}, tarOf(t, tc.name, "new", tc.dir))
			if codeOf(err) != wire.FailedPrecondition {
				t.Errorf("%s, %s: %+v, %v, want FAILED_PRECONDITION", name, what, m, err)
			}
			if after, err := copyFrom(t, c, "/srv"); err != nil || !maps.Equal(after, before) {
				t.Errorf("%s, %s: after the copy: %q, %v", name, what, after, err)
			}
		}
		m, err := copyTo(t, c, worker.Spec{Path: "/srv/site/old", Overwrite: place.Files}, tarOf(t, "x", "new", false))
		if after, e := copyFrom(t, c, "/srv/site/old"); err != nil || e != nil || after["old"] != "new" {
			t.Errorf("%s: beside a volume: %+v, %v, %q, %v", name, m, err, after, e)
		}
	}
}

// TestTheSHA256AtTheEnd is verified by the worker, which sends its own.
func TestTheSHA256AtTheEnd(t *testing.T) {
	c, _ := startContainer(t, pod.Pod{})
	stream := tarOf(t, "s", "content", false)
	digest := archive.NewDigest(true)
	digest.Write(stream)
	sum := hex.EncodeToString(digest.Sum().SHA256)
	known := digest.Sum()
	known.SHA256 = nil
	for name, tc := range map[string]struct {
		sum      string
		declared *archive.Sum
		want     wire.Code
	}{"right": {sum, nil, ""}, "another": {strings.Repeat("ab", 32), nil, wire.DataLoss}, "none": {"", nil, wire.InvalidArgument},
		"size and CRC-32C are declared": {"", &known, wire.InvalidArgument}} {
		m, err := copyTo(t, c, worker.Spec{Path: "/tmp/" + name, SHA256: true, Declared: tc.declared}, stream, func(m *wire.Message) { m.SHA256 = tc.sum })
		if codeOf(err) != tc.want || err == nil && m.SHA256 != sum {
			t.Errorf("%s: %+v, %v, want %s", name, m, err, tc.want)
		}
	}
	if got := c.list(t, "tmp"); got != "right" {
		t.Errorf("/tmp has %q", got)
	}
}

// TestCheck starts a worker on this node, and not without its program.
func TestCheck(t *testing.T) {
	p := program
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	p.Root = t.TempDir()
	if err := p.Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
}

// TestProcessesThatAreNoContainer are refused.
func TestProcessesThatAreNoContainer(t *testing.T) {
	if c, err := node.Open(os.Getpid(), ":/"); !errors.Is(err, ErrNotContained) {
		t.Errorf("the test itself: %v, %v", c, err)
	}
	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Skip(err)
	}
	if c, err := node.Open(ended.Process.Pid, ":/"); !errors.Is(err, ErrGone) {
		t.Errorf("a process that has ended: %v, %v", c, err)
	}
	c, _ := startContainer(t, pod.Pod{})
	if other, err := node.Open(c.firstPID(t), "another container"); !errors.Is(err, ErrNotContained) {
		t.Errorf("another control group: %v, %v", other, err)
	}
}

// firstPID returns the number of the first process.
func (c *Container) firstPID(t *testing.T) int {
	t.Helper()
	text, err := c.read("stat")
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}
