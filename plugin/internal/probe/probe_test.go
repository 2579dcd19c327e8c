//go:build unix

package probe_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/causeway-csi/causeway/plugin/internal/fake"
	"github.com/causeway-csi/causeway/plugin/internal/probe"
)

func options() probe.Options {
	return probe.Options{Namespace: fake.Namespace, Image: "busybox", Root: "/var/lib/causeway", Kubelets: probe.Kubelets,
		Poll: time.Second}
}

// run runs the probe in a bubble, where the seconds between two looks at the pod pass at once.
func run(t *testing.T, kube kubernetes.Interface, node string, o probe.Options) (f probe.Facts, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f, err = probe.Run(t.Context(), kube, node, o) })
	return f, err
}

// left returns the number of pods that still exist.
func left(t *testing.T, c *fake.Clients) int {
	t.Helper()
	l, err := c.Kube.CoreV1().Pods(fake.Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(l.Items)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hosts are changes of a node, and the facts that differ then.
var hosts = map[string]struct {
	change func(t *testing.T, host string)
	want   func(f *probe.Facts)
}{
	"a good node": {func(*testing.T, string) {}, func(*probe.Facts) {}},
	"an ext4 root": {func(t *testing.T, h string) { write(t, h+"/proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n") },
		func(f *probe.Facts) { f.Filesystem, f.Options, f.ProjectQuotas = "ext4", nil, false }},
	"a root over which another is mounted": {func(t *testing.T, h string) {
		write(t, h+"/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 a rw\n2 1 8:1 / /var/lib rw - xfs b rw\n"+
			"3 1 8:1 / /var/lib ro,nosuid - btrfs c rw,ro*\n4 1 8:1 / /mnt\\040x rw - overlay d rw,lowerdir=*:b,ro=1\n")
	}, func(f *probe.Facts) {
		f.Filesystem, f.Options, f.ProjectQuotas, f.ReadOnlyMounts = "btrfs", []string{"ro"}, false, true
	}},
	"a filesystem that is read-only": {func(t *testing.T, h string) { write(t, h+"/proc/1/mountinfo", "1 0 8:1 / / rw shared:1 - ext4 a ro\n") },
		func(f *probe.Facts) {
			f.Filesystem, f.Options, f.ProjectQuotas, f.ReadOnlyMounts = "ext4", []string{"ro"}, false, true
		}},
	"no mounts": {func(t *testing.T, h string) { must(t, os.Remove(h+"/proc/1/mountinfo")) },
		func(f *probe.Facts) { f.Filesystem, f.Options, f.ProjectQuotas = "unknown", nil, false }},
	"no root": {func(t *testing.T, h string) { must(t, os.Remove(h+"/var/lib/causeway")) },
		func(f *probe.Facts) { *f = noRoot(*f, probe.Absent) }},
	"a file as root": {func(t *testing.T, h string) {
		must(t, os.Remove(h+"/var/lib/causeway"))
		write(t, h+"/var/lib/causeway", "")
	}, func(f *probe.Facts) { *f = noRoot(*f, probe.Other) }},
	"a link as root": {func(t *testing.T, h string) {
		must(t, os.Rename(h+"/var/lib/causeway", h+"/var/lib/other"))
		must(t, os.Symlink("other", h+"/var/lib/causeway"))
	}, func(f *probe.Facts) { *f = noRoot(*f, probe.Link) }},
	"a link above the root": {func(t *testing.T, h string) {
		must(t, os.Rename(h+"/var/lib", h+"/var/other"))
		must(t, os.Symlink("other", h+"/var/lib"))
	}, func(f *probe.Facts) {
		*f = noRoot(*f, probe.Link)
		for _, k := range probe.Kubelets[:2] {
			f.KubeletRoots[k] = probe.Link
		}
	}},
	"a root that was served": {func(t *testing.T, h string) { write(t, h+"/var/lib/causeway/identity.json", "{}") },
		func(f *probe.Facts) { f.Content = probe.Served }},
	"a new ext4": {func(t *testing.T, h string) { write(t, h+"/var/lib/causeway/lost+found/x", "") }, func(*probe.Facts) {}},
	"foreign files": {func(t *testing.T, h string) { write(t, h+"/var/lib/causeway/.a b", "") },
		func(f *probe.Facts) { f.Content = probe.Foreign }},
	"no loop device": {func(t *testing.T, h string) { must(t, os.Remove(h+"/dev/loop-control")) }, func(*probe.Facts) {}},
	"no modules": {func(t *testing.T, h string) {
		must(t, os.Remove(h+"/dev/loop-control"))
		must(t, os.RemoveAll(h+"/lib"))
	}, func(f *probe.Facts) {
		f.Modules["loop"], f.Modules["btrfs"], f.Modules["cifs"] = probe.Unknown, probe.Unknown, probe.Unknown
	}},
	"a kernel without btrfs and cifs": {func(t *testing.T, h string) {
		dep, err := filepath.Glob(h + "/lib/modules/*/modules.dep")
		must(t, err)
		write(t, dep[0], "kernel/fs/xbtrfs.ko:\nkernel/net/cifs.kox: a/btrfs.ko\n")
	}, func(f *probe.Facts) { f.Modules["btrfs"], f.Modules["cifs"] = probe.Missing, probe.Missing }},
	"the kubelet elsewhere": {func(t *testing.T, h string) {
		must(t, os.MkdirAll(h+"/var/lib/k0s", 0o755))
		must(t, os.Rename(h+"/var/lib/kubelet", h+"/var/lib/k0s/kubelet"))
	}, func(f *probe.Facts) {
		f.KubeletRoots[probe.Kubelets[0]], f.KubeletRoots[probe.Kubelets[1]] = probe.Absent, probe.Own
	}},
}

func noRoot(f probe.Facts, s probe.State) probe.Facts {
	f.Root, f.Content, f.Filesystem, f.Options, f.ProjectQuotas = s, "", "", nil, false
	return f
}

// good are the facts of fake.Host, except for the kernel.
func good() probe.Facts {
	return probe.Facts{Root: probe.Directory, Content: probe.Empty, Filesystem: "xfs", Options: []string{"prjquota"},
		ProjectQuotas: true, Modules: map[string]probe.State{"ext4": probe.Loaded, "xfs": probe.Loaded,
			"btrfs": probe.Available, "cifs": probe.Available, "loop": probe.Loaded},
		KubeletRoots: map[string]probe.State{probe.Kubelets[0]: probe.Own, probe.Kubelets[1]: probe.Absent,
			probe.Kubelets[2]: probe.Absent}}
}

// shells returns the shells of this machine. The images have that of busybox.
func shells(t *testing.T) (all [][]string) {
	t.Helper()
	for _, s := range [][]string{{"sh"}, {"dash"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(s[0]); err == nil {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		t.Skip("no shell")
	}
	return all
}

func TestTheScriptReadsANode(t *testing.T) {
	for _, shell := range shells(t) {
		for name, tc := range hosts {
			t.Run(strings.Join(shell, " ")+"/"+name, func(t *testing.T) {
				host := t.TempDir()
				must(t, fake.Host(host))
				c := fake.Fresh()
				c.RunPods(shell, host)
				start := c.OnPod
				c.OnPod = func(p *corev1.Pod) corev1.PodStatus { // the kubelet has the directory of the pod, then it starts
					must(t, os.MkdirAll(filepath.Join(host, "var/lib/kubelet/pods", string(p.UID)), 0o755))
					tc.change(t, host)
					return start(p)
				}
				clients := c.Clients()
				got, err := run(t, clients.Kube, "node-1", options())
				if err != nil {
					t.Fatal(err)
				}
				want := good()
				want.Kernel = got.Kernel
				tc.want(&want)
				if !reflect.DeepEqual(got, want) || got.Kernel == "" {
					t.Errorf("got\n%+v, want\n%+v", got, want)
				}
				if n := left(t, clients); n != 0 {
					t.Errorf("%d pods are left", n)
				}
			})
		}
	}
}

// A path whose state cannot be read is neither absent nor present.
func TestAnErrorOfAPathIsNotItsAbsence(t *testing.T) {
	host := t.TempDir()
	must(t, fake.Host(host))
	c := fake.Fresh()
	c.RunPods(shells(t)[0], host)
	o := options()
	o.Root = "/" + strings.Repeat("x", 300)
	f, err := run(t, c.Clients().Kube, "node-1", o)
	if err != nil || f.Root != probe.Denied {
		t.Errorf("%+v, %v", f, err)
	}
	if dir, reason := f.KubeletRoot(); dir != "" || reason != "" { // no candidate has the pod
		t.Errorf("%q, %q", dir, reason)
	}
}

func TestThePodOnlyReads(t *testing.T) {
	c := fake.Fresh()
	var pod *corev1.Pod
	c.OnPod = func(p *corev1.Pod) corev1.PodStatus { pod = p; return corev1.PodStatus{Phase: corev1.PodFailed} }
	_, err := run(t, c.Clients().Kube, "node-1", options())
	if err == nil {
		t.Error("a failed pod has facts")
	}
	s, one := pod.Spec, pod.Spec.Containers[0]
	switch security := one.SecurityContext; {
	case s.HostPID || s.HostNetwork || s.HostIPC, security.Privileged != nil, *security.AllowPrivilegeEscalation,
		!*security.ReadOnlyRootFilesystem, security.Capabilities.Drop[0] != "ALL", security.Capabilities.Add != nil:
		t.Errorf("it has a privilege: %+v", s)
	case len(s.Volumes) != 1 || !one.VolumeMounts[0].ReadOnly || *one.VolumeMounts[0].RecursiveReadOnly != "IfPossible":
		t.Errorf("it can write: %+v", one.VolumeMounts)
	case *s.AutomountServiceAccountToken || *s.ActiveDeadlineSeconds != 120 || pod.Labels[probe.Label] != "pre" || s.NodeName != "node-1":
		t.Errorf("%+v", pod)
	}
}

func status(s corev1.ContainerState) func(*corev1.Pod) corev1.PodStatus {
	return func(*corev1.Pod) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: s}}}
	}
}

func TestPodsAreDeletedAfterEachError(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  func(*corev1.Pod) corev1.PodStatus
		want string
	}{
		"no image": {status(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no host"}}), "no host"},
		"back-off": {status(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}), "BackOff"},
		"a failed script": {status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 127, Message: "grep: not found"}}),
			"exit code 127:  grep: not found"},
		"other output": {status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "facts 1\nx"}}), "not that of the script"},
		"a rejected pod": {func(*corev1.Pod) corev1.PodStatus {
			return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "full"}
		}, "OutOfpods: full"},
	} {
		c := fake.Fresh()
		c.OnPod = tc.pod
		clients := c.Clients()
		_, err := run(t, clients.Kube, "node-1", options())
		if n := left(t, clients); err == nil || !strings.Contains(err.Error(), tc.want) || n != 0 {
			t.Errorf("%s: %v, %d pods are left", name, err, n)
		}
	}
}

func TestACreateWithoutAnAnswerLeavesNoPod(t *testing.T) {
	clients := fake.Fresh().Clients()
	clients.Kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		must(t, clients.Kube.Tracker().Create(a.GetResource(), a.(clienttesting.CreateAction).GetObject(), fake.Namespace))
		return true, nil, errors.New("connection lost")
	})
	_, err := run(t, clients.Kube, "node-1", options())
	if n := left(t, clients); err == nil || !strings.Contains(err.Error(), "connection lost") || n != 0 {
		t.Errorf("%v, %d pods are left", err, n)
	}
}

func TestAnInterruptDeletesThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.Fresh()
		ctx, cancel := context.WithCancelCause(context.Background())
		created := false
		c.OnPod = func(*corev1.Pod) corev1.PodStatus {
			created = true
			time.AfterFunc(20*time.Second, func() { cancel(errors.New("interrupted")) })
			return corev1.PodStatus{Phase: corev1.PodPending}
		}
		clients := c.Clients()
		_, err := probe.Run(ctx, clients.Kube, "node-1", options())
		if n := left(t, clients); !created || err == nil || !strings.Contains(err.Error(), "interrupted") || n != 0 {
			t.Errorf("%v, %d pods are left", err, n)
		}
		created = false
		if _, err := probe.Run(ctx, clients.Kube, "node-2", options()); err == nil || created {
			t.Errorf("a pod after the interrupt: %v", err)
		}
	})
}

// A client of a real API server gives up a request whose context has ended; the fake does not.
func TestTheDeleteOutlivesTheInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	deleted := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method {
		case http.MethodGet:
			cancel()
		case http.MethodDelete:
			deleted = true
		}
		_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1"}`))
	}))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	must(t, err)
	if _, err := probe.Run(ctx, kube, "node-1", options()); !errors.Is(err, context.Canceled) || !deleted {
		t.Errorf("%v, deleted: %v", err, deleted)
	}
}

// A pod that cannot be deleted is an error, even if its facts are known.
func TestAPodThatStaysIsReported(t *testing.T) {
	host := t.TempDir()
	must(t, fake.Host(host))
	c := fake.Fresh()
	c.RunPods(shells(t)[0], host)
	clients := c.Clients()
	clients.Kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
		return true, nil, errors.New("no right")
	})
	if _, err := run(t, clients.Kube, "node-1", options()); err == nil ||
		!strings.Contains(err.Error(), "delete pod causeway-doctor-") {
		t.Errorf("%v", err)
	}
}

const output = `facts 1
kernel 6.12.0
root directory
content empty
filesystem xfs prjquota
module ext4 loaded
module xfs loaded
module btrfs missing
module cifs available
module loop unknown
kubelet /var/lib/kubelet own
end
`

func TestOnlyTheOutputOfTheScriptIsParsed(t *testing.T) {
	if f, err := probe.Parse(output); err != nil || !f.ProjectQuotas || f.Modules["loop"] != probe.Unknown {
		t.Fatalf("%+v, %v", f, err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(output, "\n"), "\n")
	for i, line := range lines {
		without := strings.Join(append(append([]string{}, lines[:i]...), lines[i+1:]...), "")
		if _, err := probe.Parse(without); err == nil && !strings.HasPrefix(line, "kubelet") {
			t.Errorf("accepted without %q", line)
		}
		if _, err := probe.Parse(strings.Replace(output, line, line+line, 1)); err == nil && i < len(lines)-1 {
			t.Errorf("accepted with two lines %q", line)
		}
		for _, wrong := range []string{"x" + line, strings.TrimSuffix(line, "\n") + " x y\n", "\n"} {
			if f, err := probe.Parse(strings.Replace(output, line, wrong, 1)); err == nil {
				t.Errorf("accepted %q: %+v", wrong, f)
			}
		}
	}
	for _, n := range []int{0, 1, 20, len(output) - 2} {
		if _, err := probe.Parse(output[:n]); err == nil {
			t.Errorf("accepted the first %d bytes", n)
		}
	}
}

// A node can write any text. A text with wrong bytes is an error without facts, or complete facts.
func TestDamagedOutputGivesNoHalfFacts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 50000 {
		text := []byte(output)
		for range 1 + random.IntN(3) {
			switch i := random.IntN(len(text)); random.IntN(3) {
			case 0:
				text[i] = byte(random.IntN(256))
			case 1:
				text = append(text[:i], text[i+1:]...)
			default:
				text = append(text[:i], text[min(len(text), i+random.IntN(40)):]...)
			}
			if len(text) == 0 {
				break
			}
		}
		facts, err := probe.Parse(string(text))
		switch {
		case err != nil && !reflect.DeepEqual(facts, probe.Facts{}):
			t.Fatalf("%q: facts after an error: %+v", text, facts)
		case err == nil && (len(facts.Modules) != 5 || facts.Kernel == "" || facts.Root != probe.Directory):
			t.Fatalf("%q: half facts: %+v", text, facts)
		case err == nil:
			accepted++
		}
	}
	if accepted == 0 || accepted > 25000 {
		t.Errorf("%d of 50000 texts were accepted", accepted)
	}
}
