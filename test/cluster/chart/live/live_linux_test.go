package live

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// patience is the longest wait of a command for any state. It is not the usual duration.
const patience = 3 * time.Minute

// story is the state that all steps share.
type story struct {
	*testing.T
	helm          install.Helm
	previous, now install.Images
	old           string   // the previous chart
	before        []string // the cluster's objects before the first installation
	workload      string   // properties of the writing pods that must not change
	written       []int    // how long their logs were when they were ended
	longest       int      // of the times between two writes, in seconds
}

// TestChart is a single story, as each step needs the step before.
//
// CAUSEWAY_PREVIOUS is the directory of the previous release, whose chart and images are used. No
// release has been made yet, so by default the previous chart is this tree's with the version
// 0.0.9, packaged, and with images of its own whose programs have version v0.0.9: all pods are
// replaced, but differences between two releases are not tested.
func TestChart(t *testing.T) {
	s := &story{T: t}
	s.prepare()
	for _, step := range []struct {
		name string
		run  func(*story)
	}{
		{"without Helm", withoutHelm},
		{"install the previous chart", installed},
		{"helm test", tested},
		{"pods begin to write", begun},
		{"upgrade to this chart", upgraded},
		{"roll back", rolledBack},
		{"upgrade again", upgradedAgain},
		{"what cannot change is refused before anything is", refused},
		{"other certificates", certificates},
		{"Windows nodes", windows},
		{"helm test fails where a volume cannot hold what is written", testFails},
		{"uninstall", uninstalled},
		{"install again", installedAgain},
		{"the end", ended},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			inner := *s
			inner.T = t
			defer func() { inner.T = s.T; *s = inner }()
			start := time.Now()
			t.Cleanup(func() {
				if t.Failed() {
					s.why()
				}
				t.Logf("%4.1f s", time.Since(start).Seconds())
			})
			step.run(&inner)
		}) {
			return
		}
	}
	t.Logf("the longest time between two writes was %d s", s.longest)
}

// prepare makes the images and loads them, and packages the previous chart.
func (s *story) prepare() {
	ctx, dir := s.Context(), s.TempDir()
	var err error
	s.helm, err = install.NewHelm(ctx, os.Stderr, kube)
	s.must(err)
	if release := os.Getenv("CAUSEWAY_PREVIOUS"); release != "" {
		s.released(release)
	} else {
		s.previous, err = install.MakeImages(ctx, os.Stderr, filepath.Join(dir, "v0.0.9"), "v0.0.9")
		s.must(err)
		s.run("package", chart.Directory(), "--version=0.0.9", "--app-version=v0.0.9", "--destination="+dir)
		s.old = filepath.Join(dir, "causeway-0.0.9.tgz")
	}
	s.now, err = install.MakeImages(ctx, os.Stderr, filepath.Join(dir, "dev"), "dev")
	s.must(err)
	for _, images := range []install.Images{s.previous, s.now} {
		s.must(images.Load(ctx, os.Stderr, cluster))
	}
	s.before, err = s.objects()
	s.must(err)
}

// released takes the previous chart and its images from the directory of a release. The version is
// in the name of the chart's package.
func (s *story) released(dir string) {
	charts, err := filepath.Glob(filepath.Join(dir, "causeway-[0-9]*.tgz"))
	s.must(err)
	if len(charts) != 1 {
		s.Fatalf("CAUSEWAY_PREVIOUS=%s: must be the directory of a release, with one package of the chart", dir)
	}
	s.old = charts[0]
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s.old), "causeway-"), ".tgz")
	s.previous, err = install.Released(dir, "v"+version)
	s.must(err)
}

// withoutHelm: the plain manifests run, and leave nothing in the way of Helm.
func withoutHelm(s *story) {
	s.must(install.Manifests(s.Context(), kube, s.now))
	s.served()
	policies := strings.Fields(s.kubectl("get", "validatingadmissionpolicies", "-o", "name"))
	if len(policies) == 0 {
		s.Error("there are no policies")
	}
	await.NoError(s, "the policies' expressions are checked", func() error {
		out, err := kube.Run(s.Context(), "get", "validatingadmissionpolicies", "-o",
			"jsonpath={range .items[*]}{.status.typeChecking}{\"\\n\"}{end}")
		if err == nil && out != strings.Repeat("{}\n", len(policies)) {
			err = fmt.Errorf("what Kubernetes says of their types is %s", out)
		}
		return err
	})
	s.kubectl("delete", "-k", install.Overlay(), "--timeout="+patience.String())
	// as a cluster is that never had snapshots
	s.kubectl("delete", "-k", filepath.Join(chart.Directory(), "crds"), "--timeout="+patience.String())
	s.nothingWith("app.kubernetes.io/part-of=causeway")
}

// installed: Helm makes the CRDs too, and the commands of the notes work.
func installed(s *story) {
	s.must(install.MakeNamespace(s.Context(), kube))
	notes, err := s.helm.Upgrade(s.Context(), s.old, s.previous, "--install")
	s.must(err)
	if crds := strings.Fields(s.kubectl("get", "-k", filepath.Join(chart.Directory(), "crds"), "-o",
		"name")); len(crds) != 6 {
		s.Errorf("the cluster has the CRDs %q", crds)
	}
	s.runs(s.previous.Tag())
	s.ready()
	lines := regexp.MustCompile(`(?m)^  (kubectl .*)$`).FindAllStringSubmatch(notes, -1)
	if len(lines) != 3 || !strings.Contains(notes, "\n  helm test causeway -n causeway\n") {
		s.Errorf("the notes have %d lines to verify it with:\n%s", len(lines), notes)
	}
	for _, l := range lines {
		s.kubectl(strings.Fields(l[1])[1:]...)
	}
	s.served()
	// Helm's certificates are of two CAs, and that is no trouble
	for _, name := range []string{"causeway-controller", "causeway-node"} {
		said := s.kubectl("-n", install.Namespace, "logs", "--selector=app.kubernetes.io/name="+name,
			"--container=driver", "--tail=-1")
		if said == "" || strings.Contains(said, "wrong CA") || strings.Contains(said, "will refuse") {
			s.Errorf("%s complains of its certificates, or says nothing:\n%s", name, said)
		}
	}
}

// tested: a volume of each class was written by a pod and read by another.
func tested(s *story) {
	out := s.run("test", "causeway", "--logs", "--timeout="+patience.String())
	written := regexp.MustCompile(`(?m)^[0-9a-f]{64}  file$`).FindAllString(out, -1)
	slices.Sort(written)
	if read := strings.Count(out, "\nfile: OK\n"); len(slices.Compact(written)) != 2 || read != 2 {
		s.Errorf("%d volumes were written and %d read:\n%s", len(written), read, out)
	}
	s.nothingOfTests()
}

// nothingOfTests waits until nothing is left of helm test.
func (s *story) nothingOfTests() {
	s.Helper()
	await.NoError(s, "nothing is left of helm test", func() error {
		return empty(kube.Run(s.Context(), "-n", install.Namespace, "get", "pods,pvc", "-o", "name",
			"--selector=app.kubernetes.io/instance=causeway"))
	})
}

// begun has a pod on each node append to a log in a directory, in an image and in an inline volume.
func begun(s *story) {
	s.kubectl("create", "namespace", "writers")
	s.apply(writers)
	s.kubectl("-n", "writers", "rollout", "status", "statefulset/writer", "--timeout="+patience.String())
	if at := strings.Fields(s.kubectl("-n", "writers", "get", "pods", "-o",
		"jsonpath={.items[*].spec.nodeName}")); len(at) != 2 || at[0] == at[1] {
		s.Fatalf("the pods are at %q", at)
	}
	await.NoError(s, "the first lines are written", func() error {
		for _, pod := range []string{"writer-0", "writer-1"} {
			if _, err := kube.Run(s.Context(), "-n", "writers", "exec", pod, "--", "test", "-s",
				"/inline/log"); err != nil {
				return err
			}
		}
		return nil
	})
	s.workload = s.identity()
	s.goOn()
}

// refused: Helm would find out halfway that a class cannot change, with the driver replaced
// already.
func refused(s *story) {
	generations := func() string {
		return s.kubectl("-n", install.Namespace, "get", "daemonsets,deployments", "-o",
			"jsonpath={.items[*].metadata.generation}")
	}
	before, history := generations(), s.run("history", "causeway")
	for set, want := range map[string]string{
		"hostpath.driverName=other.csi.example.com":                                   "cannot be called otherwise",
		"hostpath.storageClasses.causeway-hostpath.reclaimPolicy=Retain":              "a class cannot change",
		"hostpath.storageClasses.causeway-hostpath-image.fsType=xfs":                  "a class cannot change",
		"hostpath.volumeAttributesClasses.causeway-hostpath-read-ahead.readahead=2Mi": "a class cannot change",
		"hostpath.groupSnapshotClass.deletionPolicy=Retain":                           "a class cannot change",
		"hostpath.csiDriver.inlineVolumes=false":                                      "it cannot change",
	} {
		if _, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now, "--set="+set); err == nil ||
			!strings.Contains(err.Error(), want) {
			s.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	s.same("what runs", before, generations())
	s.same("the release's history", history, s.run("history", "causeway"))
	s.undisturbed()
}

func upgraded(s *story) {
	before := s.secrets()
	_, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now)
	s.must(err)
	s.runs("dev")
	s.same("the certificates", before, s.secrets())
	s.undisturbed()
	s.served()
	if got := s.run("history", "causeway", "--output=yaml"); !strings.Contains(got, "chart: "+strings.TrimSuffix(filepath.Base(s.old), ".tgz")+"\n") {
		s.Error(got)
	}
}

func rolledBack(s *story) {
	before := s.secrets()
	s.run("rollback", "causeway", "1", "--wait", "--timeout=180s")
	s.runs(s.previous.Tag())
	s.same("the certificates", before, s.secrets())
	s.undisturbed()
	s.served()
}

func upgradedAgain(s *story) {
	_, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now)
	s.must(err)
	s.runs("dev")
	s.undisturbed()
	s.served()
}

// certificates: another generation has other CAs. The router is replaced, so that it has no
// connection of the old generation; nodes see their files change when their kubelet does, within
// two minutes.
func certificates(s *story) {
	before := s.secrets()
	_, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now, "--set=hostpath.certificates.generation=2")
	s.must(err)
	after := s.secrets()
	for i, file := range strings.Fields(after) {
		if strings.Contains(before, file) {
			s.Errorf("number %d of the certificates and keys is one of before", i)
		}
	}
	s.kubectl("-n", install.Namespace, "rollout", "restart", "deployment/causeway-controller")
	s.kubectl("-n", install.Namespace, "rollout", "status", "deployment/causeway-controller",
		"--timeout="+patience.String())
	s.undisturbed()
	s.served()
	_, err = s.helm.Upgrade(s.Context(), chart.Directory(), s.now, "--set=hostpath.certificates.generation=2")
	s.must(err)
	s.same("the certificates of the second generation, after one more upgrade", after, s.secrets())
}

// windows: each node has the pod that is for it. Nothing runs on a node that kwok plays.
func windows(s *story) {
	_, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now,
		"--set=hostpath.certificates.generation=2,hostpath.windows.enabled=true")
	s.must(err)
	for system, want := range map[string]string{"linux": "node-1 node-2", "windows": "windows-1"} {
		at := strings.Fields(s.kubectl("-n", install.Namespace, "get", "pods", "--selector=app.kubernetes.io/name=causeway-node,causeway.dev/os="+system, "-o", "jsonpath={.items[*].spec.nodeName}"))
		slices.Sort(at)
		s.same("the nodes of pods for "+system, want, strings.Join(at, " "))
	}
	if at := s.kubectl("-n", install.Namespace, "get", "pods", "--selector=app.kubernetes.io/name=causeway-controller",
		"-o", "jsonpath={.items[*].spec.nodeName}"); strings.Contains(at, "windows") {
		s.Errorf("the controller is at %s", at)
	}
	s.served() // a Windows node whose driver does not answer delays no call
	_, err = s.helm.Upgrade(s.Context(), chart.Directory(), s.now, "--set=hostpath.certificates.generation=2")
	s.must(err)
	if out := s.kubectl("-n", install.Namespace, "get", "daemonsets", "-o",
		"name"); strings.TrimSpace(out) != "daemonset.apps/causeway-node" {
		s.Errorf("after Windows is switched off there is %s", out)
	}
}

// testFails: 16 MiB do not go into an image of 12. Nothing is left of that either, and the next
// test works.
func testFails(s *story) {
	_, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now,
		"--set=hostpath.certificates.generation=2,tests.size=12Mi")
	s.must(err)
	if out, err := s.helm.Run(s.Context(), "test", "causeway", "--timeout="+patience.String()); err == nil ||
		!strings.Contains(out+err.Error(), "head: standard output") {
		s.Errorf("%v, and no word of the pod's in:\n%s", err, out)
	}
	s.nothingOfTests()
	_, err = s.helm.Upgrade(s.Context(), chart.Directory(), s.now, "--set=hostpath.certificates.generation=2")
	s.must(err)
	s.run("test", "causeway", "--timeout="+patience.String())
}

// uninstalled: nothing is left but the CRDs, which all snapshots hang on, the namespace, which is
// not Helm's, and the data.
func uninstalled(s *story) {
	s.undisturbed()
	s.written = s.lengths("/directory", "/image")
	s.kubectl("-n", "writers", "delete", "statefulset/writer", "--timeout="+patience.String())
	await.NoError(s, "no pod writes", func() error {
		return empty(kube.Run(s.Context(), "-n", "writers", "get", "pods",
			"-o", "name"))
	})
	await.NoError(s, "there are no mounts of volumes", func() error {
		return empty(s.everywhere(`awk '$2 ~ "/kubernetes.io[~/]csi/" {print $2}' /proc/mounts`))
	})
	volumes, err := s.everywhere("ls " + local.StorageDir + "/volumes")
	s.must(err)
	if len(strings.Fields(volumes)) != 4 {
		s.Fatalf("the nodes have the volumes %q", volumes)
	}
	if all, err := s.with("app.kubernetes.io/instance=causeway"); err != nil || len(strings.Fields(all)) < 30 {
		s.Errorf("%v; the release has only\n%s", err, all)
	}
	s.uninstall()
	s.nothingWith("app.kubernetes.io/instance=causeway")
	s.nothingWith("app.kubernetes.io/part-of=causeway")
	await.NoError(s, "the namespace is empty", func() error {
		kinds := strings.Fields(s.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name"))
		kinds = slices.DeleteFunc(kinds,
			func(k string) bool { return strings.HasPrefix(k, "events") || strings.HasPrefix(k, "leases.") })
		left, err := kube.Run(s.Context(), "-n", install.Namespace, "get", strings.Join(kinds, ","), "-o", "name",
			"--ignore-not-found")
		got := strings.Fields(left)
		slices.Sort(got)
		// Every namespace has these objects. The sidecars' leases stay, as they are not Helm's:
		// docs/how-to/install.md.
		want := []string{"configmap/kube-root-ca.crt", "serviceaccount/default"}
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("there is %q, want %q", got, want)
		}
		return err
	})
	await.NoError(s, "no driver is at the kubelets", func() error {
		out, err := kube.Run(s.Context(), "get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name}")
		return empty(out, err)
	})
	if crds := strings.Fields(s.kubectl("get", "-k", filepath.Join(chart.Directory(), "crds"), "-o",
		"name")); len(crds) != 6 {
		s.Errorf("the cluster has the CRDs %q", crds)
	}
	left, err := s.everywhere("ls " + local.StorageDir + "/volumes")
	s.must(err)
	s.same("the volumes on the nodes", volumes, left)
}

// installedAgain: the volumes that the nodes have kept are served again, to the old claims.
func installedAgain(s *story) {
	_, err := s.helm.Upgrade(s.Context(), chart.Directory(), s.now, "--install")
	s.must(err)
	s.ready()
	// Their logs go on where they stopped, with no number missing; but for the inline volumes',
	// which ended with their pods.
	s.apply(writers)
	s.kubectl("-n", "writers", "rollout", "status", "statefulset/writer", "--timeout="+patience.String())
	for i, now := range s.lengths("/directory", "/image") {
		if now < s.written[i] {
			s.Errorf("a log had %d lines before, and has %d", s.written[i], now)
		}
	}
	s.served()
}

// ended: when claims are deleted nothing is left on the nodes' disks. The release leaves only the
// objects that docs/how-to/install.md names, and the commands of that page delete those, too.
func ended(s *story) {
	s.kubectl("delete", "namespace", "writers", "--timeout="+patience.String())
	await.NoError(s, "no PersistentVolume is left", func() error {
		return empty(kube.Run(s.Context(), "get", "pv", "-o", "name"))
	})
	await.NoError(s, "no volumes are on the nodes", func() error {
		return empty(s.everywhere("cd " + local.StorageDir + " && find volumes snapshots groups staging trash " +
			"-mindepth 1 -maxdepth 1"))
	})
	s.uninstall()
	await.NoError(s, "nothing is left but the documented objects", func() error {
		left, err := s.added()
		return empty(strings.Join(slices.DeleteFunc(left, documented.MatchString), "\n"), err)
	})
	s.kubectl("delete", "namespace", install.Namespace, "--timeout="+patience.String())
	s.kubectl("delete", "-k", filepath.Join(chart.Directory(), "crds"), "--timeout="+patience.String())
	await.NoError(s, "the cluster's objects are those of before", func() error {
		left, err := s.added()
		return empty(strings.Join(left, "\n"), err)
	})
}

// documented matches the objects that stay after the release is uninstalled, by
// docs/how-to/install.md.
var documented = regexp.MustCompile(`^(Namespace /causeway|ConfigMap causeway/kube-root-ca\.crt|ServiceAccount causeway/default|Lease causeway/.+|CustomResourceDefinition /.+\.(group)?snapshot\.storage\.k8s\.io|APIService /v[a-z0-9]+\.(group)?snapshot\.storage\.k8s\.io)$`)

// procedure is the block of commands in the section of docs/how-to/install.md about uninstalling.
var procedure = regexp.MustCompile("(?s)\n## Uninstall, and keep the data\n.*?\n +```\n(.*?)\n +```\n")

// uninstall runs the commands of docs/how-to/install.md. They end without an error, and not before
// all pods of the driver are gone.
//
// A finalizer keeps a pod of the controller for 10 s, so that the commands have to wait. Helm's own
// --wait may end earlier: the watcher of Helm 4 counts a Deployment as deleted as long as it has
// not read the Deployment's status (helm/helm#32261).
func (s *story) uninstall() {
	s.Helper()
	page, err := os.ReadFile(filepath.Join(chart.Sources(), "docs", "how-to", "install.md"))
	s.must(err)
	block := procedure.FindStringSubmatch(string(page))
	if block == nil {
		s.Fatal("docs/how-to/install.md has no commands that uninstall the release")
	}
	pod := strings.Fields(s.kubectl("-n", install.Namespace, "get", "pods",
		"--selector=app.kubernetes.io/name=causeway-controller", "-o", "name"))[0]
	hold := func(finalizers string) error {
		_, err := kube.Run(s.Context(), "-n", install.Namespace, "patch", pod, "--type=merge", "--patch",
			`{"metadata": {"finalizers": `+finalizers+`}}`)
		return err
	}
	s.must(hold(`["causeway.dev/slow"]`))
	released := make(chan error, 1)
	time.AfterFunc(10*time.Second, func() { released <- hold("null") })
	for line := range strings.Lines(block[1]) {
		switch command := strings.Fields(line); command[0] {
		case "helm":
			s.run(command[1:]...)
		case "kubectl":
			s.kubectl(command[1:]...)
		default:
			s.Fatalf("docs/how-to/install.md has a command that is neither helm's nor kubectl's: %s", line)
		}
	}
	if pods := s.kubectl("-n", install.Namespace, "get", "pods", "-o", "name"); pods != "" {
		s.Errorf("the commands of docs/how-to/install.md have ended before these pods:\n%s", pods)
	}
	s.must(<-released)
	sockets, err := s.everywhere("find /var/lib/kubelet/plugins/hostpath.csi.causeway.dev " +
		"/var/lib/kubelet/plugins_registry -mindepth 1")
	s.must(empty(sockets, err))
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// run runs Helm, which must work.
func (s *story) run(args ...string) string {
	s.Helper()
	out, err := s.helm.Run(s.Context(), args...)
	if err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (s *story) kubectl(args ...string) string {
	s.Helper()
	out, err := kube.Run(s.Context(), args...)
	s.must(err)
	return out
}

func (s *story) apply(objects string) {
	s.Helper()
	s.must(kube.Apply(s.Context(), objects))
}

// everywhere runs a shell command on all nodes, and returns the output.
func (s *story) everywhere(line string) (all string, err error) {
	for _, n := range nodes {
		out, err := n.Run(s.Context(), "sh", "-c", line)
		if err != nil {
			return all, err
		}
		all += out
	}
	return all, nil
}

func (s *story) same(what, want, got string) {
	s.Helper()
	if got != want {
		s.Errorf("%s: %q, want %q", what, got, want)
	}
}

func empty(out string, err error) error {
	if out = strings.TrimSpace(out); err == nil && out != "" {
		err = fmt.Errorf("there is:\n%s", out)
	}
	return err
}

// list runs kubectl get for all kinds of objects, in all namespaces.
func (s *story) list(args ...string) (string, error) {
	kinds, err := kube.Run(s.Context(), "api-resources", "--verbs=list", "-o", "name")
	if err != nil {
		return "", err
	}
	return kube.Run(s.Context(), append([]string{"get", strings.Join(strings.Fields(kinds), ","), "-A",
		"--ignore-not-found"}, args...)...)
}

// with returns all objects of any kind that have a label, but for the driver's namespace.
func (s *story) with(label string) (string, error) {
	return s.list("--selector="+label+",kubernetes.io/metadata.name!=causeway", "-o", "name")
}

// objects returns all objects of the cluster except events, each as "Kind namespace/name".
func (s *story) objects() ([]string, error) {
	out, err := s.list("-o", `jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(strings.Split(out, "\n"),
		func(o string) bool { return o == "" || strings.HasPrefix(o, "Event ") })
	if !slices.Contains(all, "Namespace /default") {
		return nil, fmt.Errorf("the list of all objects lacks the namespace default:\n%s", out)
	}
	return all, nil
}

// added returns the objects that were not in the cluster before the driver was first installed.
func (s *story) added() ([]string, error) {
	all, err := s.objects()
	return slices.DeleteFunc(all, func(o string) bool { return slices.Contains(s.before, o) }), err
}

// nothingWith waits until there is nothing with a label.
func (s *story) nothingWith(label string) {
	s.Helper()
	await.NoError(s, "no object has "+label, func() error { return empty(s.with(label)) })
}

// runs waits until all of the driver's pods run the images of a tag. Those of before end a while
// after Helm is content.
func (s *story) runs(tag string) {
	s.Helper()
	await.NoError(s, "two controllers and two nodes have "+tag, func() error {
		out, err := kube.Run(s.Context(), "-n", install.Namespace, "get", "pods", "-o",
			"jsonpath={.items[*].spec.containers[*].image}")
		if images := strings.Fields(out); err == nil &&
			(len(images) != 8 || slices.ContainsFunc(images,
				func(i string) bool { return !strings.HasSuffix(i, ":"+tag) })) {
			err = fmt.Errorf("the pods run %q", images)
		}
		return err
	})
}

// ready waits until the scheduler knows the capacity for both classes on both nodes.
func (s *story) ready() {
	s.Helper()
	await.NoError(s, "there is room for both classes on both nodes", func() error {
		sizes, err := kube.Run(s.Context(), "-n", install.Namespace, "get", "csistoragecapacities", "-o",
			"jsonpath={.items[*].capacity}")
		if got := strings.Fields(sizes); err == nil && (len(got) != 2*len(nodes) || slices.Contains(got, "0")) {
			err = fmt.Errorf("there is %q", got)
		}
		return err
	})
}

// secrets returns the content of the two secrets, each file in a line.
func (s *story) secrets() string {
	s.Helper()
	all := s.kubectl("-n", install.Namespace, "get", "secret", "causeway-router-generated", "causeway-nodes-generated",
		"-o", `jsonpath={range .items[*]}{.data.ca\.crt}{"\n"}{.data.tls\.crt}{"\n"}{.data.tls\.key}{"\n"}{end}`)
	if n := len(strings.Fields(all)); n != 6 {
		s.Fatalf("%d of six files have something in them", n)
	}
	return all
}

// served: new claims of both classes work on both nodes, and go.
func (s *story) served() {
	s.Helper()
	var objects []string
	for _, n := range nodes {
		objects = append(objects, fmt.Sprintf(try, n.Name, testimages.Busybox))
	}
	all := strings.Join(objects, "---\n")
	s.kubectl("create", "namespace", "tries")
	await.NoError(s, "pods are let in", func() error {
		_, err := kube.Run(s.Context(), "-n", "tries", "get", "serviceaccount", "default")
		return err
	})
	s.apply(all)
	for _, n := range nodes {
		await.NoError(s, "a pod with two claims has written on "+n.Name, func() error {
			out, err := kube.Run(s.Context(), "-n", "tries", "get", "pod", "try-"+n.Name, "-o",
				"jsonpath={.status.phase}")
			if err == nil && out != "Succeeded" {
				err = fmt.Errorf("it is %s", out)
			}
			return err
		})
	}
	s.kubectl("-n", "tries", "delete", "pods,pvc", "--all", "--timeout="+patience.String())
	s.kubectl("delete", "namespace", "tries", "--timeout="+patience.String())
	await.NoError(s, "their PersistentVolumes are gone", func() error {
		return empty(kube.Run(s.Context(), "get", "pv", "-o",
			`jsonpath={.items[?(@.spec.claimRef.namespace=="tries")].metadata.name}`))
	})
}

// try is a pod on a node that writes to two kinds of volumes.
const try = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: directory-%[1]s, namespace: tries}
spec: {accessModes: [ReadWriteOnce], storageClassName: causeway-hostpath, resources: {requests: {storage: 10Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: image-%[1]s, namespace: tries}
spec: {accessModes: [ReadWriteOnce], storageClassName: causeway-hostpath-image, resources: {requests: {storage: 20Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: try-%[1]s, namespace: tries}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  containers:
  - name: it
    image: %[2]s
    command: [sh, -ec, "for d in /directory /image; do echo it >$d/it; sync $d/it; done"]
    volumeMounts: [{name: directory, mountPath: /directory}, {name: image, mountPath: /image}]
  volumes:
  - {name: directory, persistentVolumeClaim: {claimName: directory-%[1]s}}
  - {name: image, persistentVolumeClaim: {claimName: image-%[1]s}}
`

// writers are a pod on each node that appends the next number and the time to a log in each volume,
// with fsync, and ends with an error if it cannot.
const writers = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: writer, namespace: writers}
spec:
  replicas: 2
  podManagementPolicy: Parallel
  serviceName: writer
  selector: {matchLabels: {app: writer}}
  template:
    metadata: {labels: {app: writer}}
    spec:
      terminationGracePeriodSeconds: 5
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: writer}}}
      containers:
      - name: it
        image: ` + testimages.Busybox + `
        command:
        - sh
        - -ec
        - |
          trap 'exit 0' TERM
          while :; do
            for d in /directory /image /inline; do
              n=$(($(cat $d/log 2>/dev/null | wc -l) + 1))
              echo $n $(date +%s) | dd of=$d/log oflag=append conv=notrunc,fsync 2>/dev/null
            done
            sleep 0.2
          done
        volumeMounts: [{name: directory, mountPath: /directory}, {name: image, mountPath: /image}, {name: inline, mountPath: /inline}]
      volumes:
      - {name: inline, csi: {driver: hostpath.csi.causeway.dev, volumeAttributes: {size: 10Mi}}}
  volumeClaimTemplates:
  - metadata: {name: directory}
    spec: {accessModes: [ReadWriteOnce], storageClassName: causeway-hostpath, resources: {requests: {storage: 10Mi}}}
  - metadata: {name: image}
    spec: {accessModes: [ReadWriteOnce], storageClassName: causeway-hostpath-image, resources: {requests: {storage: 20Mi}}}
`

// identity is the identity of pods that must not be restarted: their containers, restart counts and
// volumes.
func (s *story) identity() string {
	s.Helper()
	return s.kubectl("-n", "writers", "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}`) +
		s.kubectl("get", "pv", "-o", `jsonpath={range .items[?(@.spec.claimRef.namespace=="writers")]}{.spec.claimRef.name} {.spec.csi.volumeHandle}{"\n"}{end}`)
}

// undisturbed: the pods that write are those of before, with their volumes, and go on. No number is
// missing.
func (s *story) undisturbed() {
	s.Helper()
	s.same("the pods that write", s.workload, s.identity())
	s.goOn()
}

// goOn waits until each log is longer than it is now. A number that is missing is an error.
func (s *story) goOn() {
	s.Helper()
	dirs := []string{"/directory", "/image", "/inline"}
	before := s.lengths(dirs...)
	await.NoError(s, "logs go on", func() error {
		now := s.lengths(dirs...)
		for i := range now {
			if now[i] < before[i]+3 {
				return fmt.Errorf("they had %v lines, and have %v", before, now)
			}
		}
		return nil
	})
}

// lengths returns how many lines the log in each directory of each pod has.
func (s *story) lengths(dirs ...string) (all []int) {
	s.Helper()
	for _, pod := range []string{"writer-0", "writer-1"} {
		for _, d := range dirs {
			// The last line may be half written.
			out := strings.Fields(s.kubectl("-n", "writers", "exec", pod, "--", "awk", `NR > 1 && $2 - last > longest {longest = $2 - last} $1 != NR && NF == 2 {print "line", NR, "is", $0; exit} {last = $2} END {print NR, longest + 0}`, d+"/log"))
			if len(out) != 2 {
				s.Fatalf("a number is missing in %s of %s: %q", d, pod, out)
			}
			n, err := strconv.Atoi(out[0])
			s.must(err)
			longest, err := strconv.Atoi(out[1])
			s.must(err)
			if s.written == nil { // else it is the time without a write
				s.longest = max(s.longest, longest)
			}
			all = append(all, n)
		}
	}
	return all
}

// why reports the state of the cluster when a step has failed.
func (s *story) why() {
	ctx := context.WithoutCancel(s.Context())
	for _, args := range [][]string{
		{"get", "nodes,pods,pvc", "-A", "-o", "wide"},
		{"events", "-A", "--types=Warning"},
		{"-n", install.Namespace, "logs", "--selector=app.kubernetes.io/name=causeway-controller", "--all-containers",
			"--prefix", "--tail=30"},
		{"-n", install.Namespace, "logs", "--selector=app.kubernetes.io/name=causeway-node,causeway.dev/os=linux",
			"--all-containers", "--prefix", "--tail=30"},
	} {
		out, err := kube.Run(ctx, args...)
		s.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
