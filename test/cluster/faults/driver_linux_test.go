package faults

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// copied is how many files are copied, so that there is a middle to be killed in: the nodes' disks
// share the blocks of each file, but each is made.
const copied = 15000

// A copy that its driver was killed in is nowhere to be seen, and is made again, whole.
func TestDriverKilledInCopies(t *testing.T) {
	s := begin(t)
	s.apply(claim("source", directories, "100Mi", ""), pod("source", "", idle, "source"))
	s.runs("source")
	s.in("source", fmt.Sprintf("mkdir /source/d && cd /source/d && i=0 && while [ $i -lt %d ]; do echo $i >f$i; "+
		"i=$((i+1)); done; ln -s f1 link; chmod 640 f2; chown 7:8 f3", copied))
	want, node := s.sum("source"), s.nodeOf("source")
	if !strings.HasSuffix(want, fmt.Sprintf("\n%d", copied)) {
		s.Fatalf("the source is %q", want)
	}

	s.killedInCopy(node, func() {
		s.apply(claim("clone", directories, "100Mi", "PersistentVolumeClaim/source"), pod("clone", "", idle, "clone"))
	})
	s.runs("clone")
	s.same("the clone", want, s.sum("clone"))
	s.replaceDriver(node) // a driver that is killed twice is started later

	s.killedInCopy(node, func() { s.apply(snapshot("snapshot", "source")) })
	s.until("the snapshot is ready",
		func() error { return same("true", s.value("volumesnapshot/snapshot", "{.status.readyToUse}")) })
	s.in("source", "rm -r /source/d")
	s.apply(claim("restored", directories, "100Mi", "VolumeSnapshot/snapshot"), pod("restored", "", idle, "restored"))
	s.runs("restored")
	s.same("the restored volume", want, s.sum("restored"))
	s.same("volumes and snapshots", "3 1", s.held(node))
}

// sum returns a summary of a directory: names, owners, modes, links and contents.
func (s *scene) sum(pod string) string {
	s.Helper()
	return s.in(pod, "cd /"+pod+" && (find . -exec stat -c '%n %F %a %u %g %N' {} + | sort; find . -type f | sort | "+
		"xargs cat) | md5sum; find . -type f | wc -l")
}

// held returns how many volumes and snapshots are on a node's disk.
func (s *scene) held(n local.Node) string {
	s.Helper()
	return s.on(n, "cd "+local.StorageDir+" && echo $(ls volumes | wc -l) $(ls snapshots | wc -l)")
}

// killedInCopy begins a copy and kills the node's driver in the middle of it.
func (s *scene) killedInCopy(n local.Node, begin func()) {
	s.Helper()
	before := s.held(n)
	pod, pid := s.driver(n)
	out := s.meanwhile(n, fmt.Sprintf("cd %s; until [ $(find staging -type f 2>/dev/null | wc -l) -gt 300 ]; do :; "+
		"done; kill -9 %d; "+
		"while kill -0 %d 2>/dev/null; do :; done; find staging -type f | wc -l; ls volumes | wc -l; ls snapshots | "+
		"wc -l", local.StorageDir, pid, pid), begin)
	got := strings.Fields(out)
	if len(got) != 3 {
		s.Fatalf("%q", out)
	}
	files, err := strconv.Atoi(got[0])
	if err != nil || files <= 300 || files >= copied {
		s.Fatalf("when the driver was killed, %d of %d files were copied: that is not the middle", files, copied)
	}
	s.same("volumes and snapshots in the middle of a copy", before, got[1]+" "+got[2])
	s.Logf("killed after %d of %d files", files, copied)
	s.restarted(pod)
}

// meanwhile runs a script on a node during an action, and returns the output.
func (s *scene) meanwhile(n local.Node, script string, do func()) string {
	s.Helper()
	cmd, err := n.Command(await.Context(s), "sh", "-c", script)
	s.must(err)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	s.must(cmd.Start())
	do()
	if err := cmd.Wait(); err != nil {
		s.Fatalf("on %s: %s: %v\n%s", n.Name, script, err, out.String())
	}
	return out.String()
}

// driver returns the driver's pod on a node and its driver's PID there.
func (s *scene) driver(n local.Node) (pod string, pid int) {
	s.Helper()
	pod = s.driverPod(n)
	return pod, s.pid(n, pod, "driver")
}

func (s *scene) driverPod(n local.Node) string {
	s.Helper()
	return s.kubectl("-n", install.Namespace, "get", "pods", "-l", "app.kubernetes.io/name=causeway-node",
		"--field-selector=spec.nodeName="+n.Name, "-o", "jsonpath={.items[*].metadata.name}")
}

// pid returns the PID, on its node, of a container of one of the driver's pods.
func (s *scene) pid(n local.Node, pod, container string) int {
	s.Helper()
	var pid int
	s.until(container+" of "+pod+" runs", func() error {
		id, err := s.try("-n", install.Namespace, "get", "pod", pod, "-o",
			`jsonpath={.status.containerStatuses[?(@.name=="`+container+`")].containerID}`)
		if err != nil {
			return err
		}
		tasks, err := s.shell(n, "ctr -n k8s.io tasks ls 2>/dev/null")
		if err != nil {
			return err
		}
		for line := range strings.Lines(tasks) {
			if f := strings.Fields(line); len(f) == 3 && "containerd://"+f[0] == id && f[2] == "RUNNING" {
				pid, err = strconv.Atoi(f[1])
				return err
			}
		}
		return fmt.Errorf("it is not among:\n%s", tasks)
	})
	return pid
}

// restarted waits until a driver's pod has its driver again after a kill.
func (s *scene) restarted(pod string) {
	s.Helper()
	s.until("the driver of "+pod+" has been restarted", func() error {
		const path = `{.status.containerStatuses[?(@.name=="driver")].restartCount} {.status.containerStatuses[?(@.name=="driver")].started}`
		got, err := s.try("-n", install.Namespace, "get", "pod", pod, "-o", "jsonpath="+path)
		if err == nil && (strings.HasPrefix(got, "0") || !strings.HasSuffix(got, "true")) {
			err = fmt.Errorf("restarts, and whether it runs: %s", got)
		}
		return err
	})
}

// replaceDriver deletes the driver's pod on a node, and waits until there is another.
func (s *scene) replaceDriver(n local.Node, args ...string) {
	s.Helper()
	old := s.driverPod(n)
	s.kubectl(append([]string{"-n", install.Namespace, "delete", "pod", old}, args...)...)
	s.until("there is another pod of the driver on "+n.Name, func() error {
		pods, err := s.try("-n", install.Namespace, "get", "pods", "-l", "app.kubernetes.io/name=causeway-node",
			"--field-selector=spec.nodeName="+n.Name,
			"-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		if err == nil && (strings.Contains(pods, old) || !strings.HasSuffix(pods, " True")) {
			err = fmt.Errorf("there is %q", pods)
		}
		return err
	})
}

// Pods that start while their node's driver is killed again and again all start, with volumes of
// their own.
func TestDriverKilledInPublishes(t *testing.T) {
	s := begin(t)
	n := nodes[0]
	var objects, names []string
	for i := range 12 {
		name := "pod-" + strconv.Itoa(i)
		dir, image := "d-"+strconv.Itoa(i), "i-"+strconv.Itoa(i)
		objects = append(objects, claim(dir, directories, "10Mi", ""), claim(image, images, "20Mi", ""))
		objects = append(objects, pod(name, only(n.Name), "echo "+name+" | tee /"+dir+"/name >/"+image+"/name; "+idle,
			dir, image))
		names = append(names, name)
	}
	// Each of the 24 volumes is mounted twice, for the node and for its pod.
	const mounted = `[ $(awk '$2 ~ "/kubernetes.io[~/]csi/"' /proc/mounts | wc -l) -ge %d ]`
	kill := func(at int, do func()) {
		_, pid := s.driver(n)
		s.meanwhile(n, fmt.Sprintf("until "+mounted+"; do :; done; kill -9 %d", at, pid), do)
	}
	kill(2, func() { s.apply(objects...) })
	kill(14, func() {})
	s.on(n, fmt.Sprintf("until "+mounted+"; do sleep 0.1; done", 26))
	s.replaceDriver(n, "--force", "--grace-period=0") // two of them for a while: only one serves the root
	s.runs(names...)
	for i, name := range names {
		s.same("what "+name+" has written", name+" "+name,
			s.in(name, fmt.Sprintf("echo $(cat /d-%d/name /i-%d/name)", i, i)))
	}
	s.same("volumes and snapshots", "24 0", s.held(n))
}

// The driver's pod goes and comes while pods use their volumes, which they do not notice.
func TestDriverReplacedUnderPods(t *testing.T) {
	s := begin(t)
	n := nodes[0]
	s.apply(claim("directory", directories, "10Mi", ""), claim("image", images, "20Mi", ""),
		pod("writer", only(n.Name), writes("/directory", "/image"), "directory", "image"))
	s.runs("writer")
	was := s.identity("writer")

	driver, pid := s.driver(n)
	s.on(n, "kill -9 "+strconv.Itoa(pid))
	s.restarted(driver)
	s.goesOn("writer", "/directory", "/image")
	s.replaceDriver(n)
	s.goesOn("writer", "/directory", "/image")
	s.kubectl("-n", install.Namespace, "rollout", "restart", "daemonset/causeway-node")
	s.kubectl("-n", install.Namespace, "rollout", "status", "daemonset/causeway-node", "--timeout="+patience.String())
	s.goesOn("writer", "/directory", "/image")
	s.same("the writer's container and restarts", was, s.identity("writer"))

	// The present driver can share and unmount a volume that another driver has mounted.
	s.apply(pod("reader", only(n.Name), idle, "directory", "image"))
	s.runs("reader")
	s.kubectl("delete", "pod", "writer", "--timeout="+patience.String())
	for _, dir := range []string{"/directory", "/image"} {
		if s.in("reader", length+dir+"/log") == "" {
			s.Errorf("a number is missing in %s", dir)
		}
	}
}

// identity returns a pod's container, and how often it was restarted.
func (s *scene) identity(pod string) string {
	s.Helper()
	return s.kubectl("get", "pod", pod, "-o",
		"jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")
}

// goesOn waits until a pod that writes has written more to each directory. No number is missing.
func (s *scene) goesOn(pod string, dirs ...string) {
	s.Helper()
	for _, dir := range dirs {
		s.advances(func() (string, error) { return s.try("exec", pod, "--", "sh", "-c", length+dir+"/log") })
	}
}

// advances waits until a log is longer than it is now.
func (s *scene) advances(length func() (string, error)) {
	s.Helper()
	from := 0
	s.until("a log goes on", func() error {
		out, err := length()
		if err != nil {
			return err
		}
		now, err := strconv.Atoi(out)
		if err != nil {
			s.Fatalf("a number is missing in the log: %v", err)
		}
		if from == 0 {
			from = now
		}
		if now < from+5 {
			return fmt.Errorf("it was %d long, and is %d", from, now)
		}
		return nil
	})
}

// The controller's leading pod is killed while claims are served: each gets a single volume.
func TestControllerKilledInProvisioning(t *testing.T) {
	s := begin(t)
	var objects, names, claims []string
	for i := range 15 {
		name, dir, image := "pod-"+strconv.Itoa(i), "d-"+strconv.Itoa(i), "i-"+strconv.Itoa(i)
		names, claims = append(names, name), append(claims, dir, image)
		objects = append(objects, claim(dir, directories, "10Mi", ""), claim(image, images, "20Mi", ""))
		objects = append(objects, pod(name, "", "echo "+name+" | tee /"+dir+"/name >/"+image+"/name; "+idle, dir,
			image))
	}
	leader := s.leader()
	n := s.named(s.kubectl("-n", install.Namespace, "get", "pod", leader, "-o", "jsonpath={.spec.nodeName}"))
	script := fmt.Sprintf("until [ $(ls %s/volumes | wc -l) -ge 4 ]; do :; done; kill -9 %d %d; ls %[1]s/volumes | "+
		"wc -l", local.StorageDir, s.pid(n, leader, "csi-sidecars"), s.pid(n, leader, "driver"))
	then := strings.TrimSpace(s.meanwhile(n, script, func() { s.apply(objects...) }))
	s.runs(names...)
	now := s.held(n)
	if now == then+" 0" {
		s.Fatalf("all of %s's volumes were there when the controller was killed", n.Name)
	}
	s.Logf("%s was killed when %s had %s volumes, of %s", leader, n.Name, then, now)
	var named, held []string
	for _, c := range claims {
		named = append(named, s.handle(c))
	}
	for _, n := range nodes {
		held = append(held, strings.Fields(s.on(n, "ls "+local.StorageDir+"/volumes"))...)
	}
	slices.Sort(named)
	slices.Sort(held)
	if !slices.Equal(named, held) {
		s.Errorf("on the nodes are\n%q, and the claims name\n%q", held, named)
	}
	for i, name := range names {
		s.same("what "+name+" has written", name+" "+name,
			s.in(name, fmt.Sprintf("echo $(cat /d-%d/name /i-%d/name)", i, i)))
	}
}

// leader returns the controller's pod that leads.
func (s *scene) leader() string {
	s.Helper()
	holder, _, _ := strings.Cut(s.kubectl("-n", install.Namespace, "get", "lease",
		"csi-sidecars-hostpath-csi-causeway-dev", "-o", "jsonpath={.spec.holderIdentity}"), "_")
	return holder
}
