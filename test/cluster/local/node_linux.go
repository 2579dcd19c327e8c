package local

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed files
var embedded embed.FS

// nodePatience is the time that the start of a node's part may take. A guest has an emulated
// processor: on a busy machine its start takes minutes.
const nodePatience = 6 * time.Minute

// StorageDir is where a node's data disk is mounted.
const StorageDir = "/var/lib/causeway"

// nodeDirs are the directories of a node's programs: where they are in the node's own directory,
// and where the programs look for them.
var nodeDirs = map[string]string{
	"kubelet": "/var/lib/kubelet", "containerd": "/var/lib/containerd", "cni": "/var/lib/cni", "storage": StorageDir,
	"pods-log": "/var/log/pods", "containers-log": "/var/log/containers",
}

// makeNodeDirs makes the directories that are in a node's own directory.
func makeNodeDirs(own nodeFiles) error {
	dirs := []string{own.of("log"), own.of("cni-conf")}
	for d := range nodeDirs {
		dirs = append(dirs, own.of(d))
	}
	return makeDirs(dirs...)
}

// containerdSocket is where containerd serves.
const containerdSocket = "/run/containerd/containerd.sock"

// runNode is the init process of a node: it makes the node's root, waits for its network and keys,
// and keeps containerd, kubelet and kube-proxy running. runNode ends with an error only.
func runNode(ctx context.Context, f files, s spec, n node) error {
	own := f.node(n.Name)
	if err := makeNodeDirs(own); err != nil {
		return err
	}
	groups, err := makeCgroups(cgroup(s.Name), n.Name)
	if err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	if err := makeRoot(own, f, s); err != nil {
		return fmt.Errorf("root of the node: %w", err)
	}
	os.Setenv("PATH", s.Bin+":/usr/sbin:/usr/bin:/sbin:/bin")
	if err := mountDisk(ctx, own); err != nil {
		return err
	}
	if err := joinNetwork(ctx, s, n); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	say("its network is there")
	return runPrograms(ctx, f, s, n, groups, &daemons{mine: map[int]bool{}})
}

// runPrograms keeps containerd, kubelet and kube-proxy running, with the control group that the
// kubelet's groups are below. runPrograms ends with an error only.
func runPrograms(ctx context.Context, f files, s spec, n node, groups string, d *daemons) error {
	own := f.node(n.Name)
	values := map[string]any{
		"Name": n.Name, "Address": n.Address, "Pods": n.Pods, "Bin": s.Bin, "Dir": own.dir, "CgroupRoot": groups,
		"DNS": dnsAddress, "Containerd": containerdSocket,
	}
	for from, to := range map[string]string{
		"containerd.toml": "containerd.toml", "cni.conflist": "cni-conf/10-ptp.conflist",
		"kubelet.yaml": "kubelet.yaml",
	} {
		if err := render(from, own.of(to), values); err != nil {
			return err
		}
	}
	d.run(own, "containerd", "containerd", "--config", own.of("containerd.toml"))
	if err := importImages(ctx, own, f); err != nil {
		return fmt.Errorf("import images: %w; the end of containerd's log:\n%s", err, tail(own.log("containerd")))
	}
	say("its images are there")
	if err := awaitFile(ctx, own.of("kube-proxy.kubeconfig")); err != nil {
		return err
	}
	say("its keys are there")
	go d.reap()
	kubelet := []string{"kubelet", "--config=" + own.of("kubelet.yaml"), "--kubeconfig=" + own.of("kubelet.kubeconfig"),
		"--hostname-override=" + n.Name, "--node-ip=" + n.Address, "--root-dir=/var/lib/kubelet", "--v=2"}
	if n.guest() {
		kubelet = append(kubelet, "--node-labels=node.kubernetes.io/instance-type="+GuestType)
	}
	d.run(own, "kubelet", kubelet...)
	d.run(own, "kube-proxy", "kube-proxy", "--kubeconfig="+own.of("kube-proxy.kubeconfig"),
		"--hostname-override="+n.Name, "--proxy-mode=nftables", "--cluster-cidr="+pods, "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	<-ctx.Done()
	return context.Cause(ctx)
}

// say writes into the init's log how far it has come.
func say(what string) { fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), what) }

// makeRoot builds the node's root from the visible directories, and enters it. All mounts made here
// are the node's alone: they end with the node's init.
func makeRoot(own nodeFiles, f files, s spec) error {
	// First of all, so that nothing gets out.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root := own.of("root")
	if err := makeDirs(root); err != nil {
		return err
	}
	b := builder{root: root}
	b.mount("tmpfs", "/", "tmpfs", 0, "mode=755")
	// Before the mounts that may be inside: a user's cache, for example, with the programs.
	b.mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	b.mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	for _, dir := range []string{"/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		b.system(dir)
	}
	b.bind(s.Bin, s.Bin, unix.MS_RDONLY)
	b.bind(f.images(), f.images(), unix.MS_RDONLY)
	b.bind(own.dir, own.dir, 0)
	for from, to := range nodeDirs {
		b.bind(own.of(from), to, 0)
	}
	b.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	b.settings(own)
	b.mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") // of the node's own network
	b.bind("/sys/fs/cgroup", "/sys/fs/cgroup", 0)
	b.bind("/dev", "/dev", 0)
	b.directory("/run/containerd", "/run/lock", "/run/netns", "/var/tmp", "/root", "/mnt", "/opt")
	if b.err != nil {
		return b.err
	}
	return enter(root)
}

// builder puts a root together, up to the first error.
type builder struct {
	root string
	err  error
}

func (b *builder) try(what string, err error) {
	if b.err == nil && err != nil {
		b.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (b *builder) directory(paths ...string) {
	for _, p := range paths {
		b.try("directory", os.MkdirAll(filepath.Join(b.root, p), 0o755))
	}
}

func (b *builder) mount(source, target, fstype string, flags uintptr, data string) {
	if b.directory(target); b.err == nil {
		b.try("mount "+target, unix.Mount(source, filepath.Join(b.root, target), fstype, flags, data))
	}
}

// bind shows source, with the mounts below, at target. MS_RDONLY applies to source itself.
func (b *builder) bind(source, target string, flags uintptr) {
	info, err := os.Stat(source)
	if b.try("bind", err); b.err != nil {
		return
	}
	at := filepath.Join(b.root, target)
	if info.IsDir() {
		b.directory(target)
	} else {
		b.directory(filepath.Dir(target))
		b.try("bind", os.WriteFile(at, nil, 0o600))
	}
	if b.err != nil {
		return
	}
	b.try("bind "+source, unix.Mount(source, at, "", unix.MS_BIND|unix.MS_REC, ""))
	if flags != 0 && b.err == nil { // takes a second call
		b.try("bind "+source, unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""))
	}
}

// settings are those of the whole kernel that a kubelet changes unless they have its values. They
// are this machine's, so the kubelet sees files with its values.
func (b *builder) settings(own nodeFiles) {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		shown := own.of("settings/" + name)
		b.try("settings", os.MkdirAll(filepath.Dir(shown), 0o755))
		b.try("settings", os.WriteFile(shown, []byte(value+"\n"), 0o644))
		if b.err == nil {
			b.try("settings", unix.Mount(shown, filepath.Join(b.root, "/proc/sys", name), "", unix.MS_BIND, ""))
		}
	}
}

// system shows a directory of this machine's programs, which may be a link, or be missing.
func (b *builder) system(dir string) {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		b.try("system", err)
	case info.Mode()&os.ModeSymlink != 0:
		to, err := os.Readlink(dir)
		b.try("system", err)
		b.try("system", os.Symlink(to, filepath.Join(b.root, dir)))
	default:
		b.bind(dir, dir, unix.MS_RDONLY)
	}
}

// enter makes root the root, releases the old root, and makes new mounts visible in containers, as
// Bidirectional volumes need.
func enter(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old root is then above the new root: pivot_root(2)
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// mountDisk mounts the node's data disk, a file. The loop device goes with the mount.
func mountDisk(ctx context.Context, own nodeFiles) error {
	if _, err := os.Stat(own.noDisk()); err == nil {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "mount", "-o", "loop", own.disk(),
		StorageDir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount the data disk: %w: %s", err, out)
	}
	return nil
}

// joinNetwork waits for the node's end of the veth and sets up its addresses.
func joinNetwork(ctx context.Context, s spec, n node) error {
	if err := waitFor(ctx, "eth0", func() error { _, err := net.InterfaceByName("eth0"); return err }); err != nil {
		return err
	}
	if err := ip(ctx,
		"link set lo up",
		"addr replace "+n.Address+"/24 dev eth0",
		"link set eth0 up",
		"route replace default via "+s.address(planeHost),
	); err != nil {
		return err
	}
	return hidePods(ctx, s)
}

// hidePods gives packets of pods for servers on this machine the node's address: this machine has
// no route to pods.
func hidePods(ctx context.Context, s spec) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table ip causeway-machine {
	chain postrouting {
		type nat hook postrouting priority srcnat
		ip saddr %s ip daddr %s masquerade
	}
}`, pods, s.address(machineHost)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// ip runs lines of ip(8) commands.
func ip(ctx context.Context, lines ...string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, out)
	}
	return nil
}

// serveCRI returns nil if containerd serves kubelets. If a plugin cannot start, for example for
// want of inotify instances (fs.inotify.max_user_instances), which all clusters on this machine
// share, containerd serves other clients and never retries: serveCRI then ends it, so that it
// starts anew.
func serveCRI(ctx context.Context, own nodeFiles) error {
	out, err := exec.CommandContext(ctx, "ctr", "plugins", "ls").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "io.containerd.grpc.v1" && f[1] == "cri" &&
			f[len(f)-1] == "ok" {
			return nil
		}
	}
	if pid, err := os.ReadFile(own.pid("containerd")); err == nil {
		if pid, err := strconv.Atoi(string(pid)); err == nil {
			unix.Kill(pid, unix.SIGTERM)
		}
	}
	return fmt.Errorf("it does not serve kubelets:\n%s", out)
}

// importImages gives containerd the images that every node has, when it answers.
func importImages(ctx context.Context, own nodeFiles, f files) error {
	err := waitFor(ctx, "containerd", func() error { return serveCRI(ctx, own) })
	if err != nil {
		return err
	}
	tars, err := filepath.Glob(filepath.Join(f.images(), "*.tar"))
	if err != nil {
		return err
	}
	for _, t := range tars {
		if out, err := exec.CommandContext(ctx, "ctr", "-n", "k8s.io", "images", "import",
			t).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", t, err, out)
		}
	}
	return nil
}

// render writes an embedded file, filled in.
func render(name, to string, values any) error {
	t, err := template.New(name).Option("missingkey=error").ParseFS(embedded, "files/"+name)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// waitFor tries until it works, or the patience is at its end.
func waitFor(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func awaitFile(ctx context.Context, path string) error {
	return waitFor(ctx, path, func() error { _, err := os.Stat(path); return err })
}

func makeDirs(paths ...string) error {
	for _, p := range paths {
		if err := os.MkdirAll(p, 0o755); err != nil {
			return err
		}
	}
	return nil
}
