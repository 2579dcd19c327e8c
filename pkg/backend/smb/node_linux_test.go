package smb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// node is a driver in the guest of make test-vm, whose kernel mounts shares.
type node struct {
	*machine
	*smbtest.Remote
	csi.ControllerClient
	csi.NodeClient
}

// TestNode needs a kernel with cifs, and an SMB server outside.
func TestNode(t *testing.T) {
	server := smbtest.FromEnvironment()
	if server == nil {
		t.Skip("needs an SMB server and a kernel that mounts its shares: make test-vm")
	}
	for _, c := range []struct {
		name string
		run  func(*node)
	}{
		{"create and delete are faster than mounts", (*node).isFasterThanMounts},
		{"200 volumes have one connection and one session", (*node).sharesSessions},
		{"a wrong password is refused, also beside a session with the right one", (*node).verifiesPasswords},
		{"calls on a silent server end", (*node).survivesSilence},
		{"pods continue after 90 s without their server", (*node).survivesDeath},
		{"a republish gives mounts another password and nothing else", (*node).rotates},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := newKubelet(t)
			host, err := host.New(dir, dir+".frozen")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir + ".frozen")
			w := newRemoteWorld(t, server, "node")
			n := &node{machine: w.start(dir, host), Remote: server}
			conn, err := grpc.NewClient(n.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithAuthority("localhost"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			n.ControllerClient, n.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
			c.run(n)
			n.hasNoSecrets(n.password, "ne,xt")
			table, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil || strings.Contains(string(table), " - cifs ") {
				t.Errorf("left mounted: %s, %v", table, err)
			}
		})
	}
}

// ok fails the test for an error.
func (n *node) ok(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// capability is a volume capability with a group.
func capability(group string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: group}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	}
}

// volume creates a volume.
func (n *node) volume(name string) *csi.Volume {
	n.Helper()
	resp, err := n.CreateVolume(n.context(time.Minute), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability("")},
		Parameters: map[string]string{sourceKey: n.source()},
	})
	n.ok(err)
	return resp.GetVolume()
}

// context returns a context with a limit that ends with the test.
func (n *node) context(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	n.Cleanup(cancel)
	return ctx
}

func (n *node) at(elements ...string) string {
	return filepath.Join(append([]string{n.kubelet}, elements...)...)
}

func (n *node) stage(v *csi.Volume, group, password string, limit time.Duration) error {
	_, err := n.NodeStageVolume(n.context(limit), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), VolumeContext: v.GetVolumeContext(), StagingTargetPath: n.at("staging-" + n.name(v)),
		VolumeCapability: capability(group), Secrets: map[string]string{userKey: n.User, passwordKey: password},
	})
	return err
}

// name returns a short name of a volume.
func (n *node) name(v *csi.Volume) string { return v.GetVolumeContext()[subDirKey] }

func (n *node) publish(v *csi.Volume, target, group, password string, limit time.Duration) error {
	req := &csi.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), VolumeContext: v.GetVolumeContext(), StagingTargetPath: n.at("staging-" + n.name(v)),
		TargetPath: n.at(target), VolumeCapability: capability(group),
	}
	if password != "" {
		req.Secrets = map[string]string{userKey: n.User, passwordKey: password}
	}
	_, err := n.NodePublishVolume(n.context(limit), req)
	return err
}

func (n *node) unpublish(v *csi.Volume, target string, limit time.Duration) error {
	_, err := n.NodeUnpublishVolume(n.context(limit), &csi.NodeUnpublishVolumeRequest{
		VolumeId: v.GetVolumeId(), TargetPath: n.at(target)})
	return err
}

func (n *node) unstage(v *csi.Volume, limit time.Duration) error {
	_, err := n.NodeUnstageVolume(n.context(limit), &csi.NodeUnstageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: n.at("staging-" + n.name(v))})
	return err
}

// end unpublishes, unstages and deletes a volume.
func (n *node) end(v *csi.Volume, targets ...string) {
	n.Helper()
	for _, target := range targets {
		n.ok(n.unpublish(v, target, time.Minute))
	}
	n.ok(n.unstage(v, time.Minute))
	// The first call after a restart of the server sees the end of its session, and is repeated.
	var err error
	await.True(n, "the server is available for the deletion", func() bool {
		_, err = n.DeleteVolume(n.context(time.Minute), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
		return status.Code(err) != codes.Unavailable
	})
	n.ok(err)
}

// isFasterThanMounts compares the creation and deletion of a volume with the work of a controller
// that mounts the source: mount, mkdir, umount, mount, rmdir, umount. There are two such
// controllers: one runs mount(8) with mount.cifs(8), as csi-driver-smb does, and one makes the
// system calls in its own process. isFasterThanMounts reports the ratios, and fails only if mounts
// are faster.
func (n *node) isFasterThanMounts() {
	const rounds = 10
	at := n.at("mount")
	source, err := mounter.ParseShare(n.source())
	n.ok(err)
	m := mounter.Mount{Kind: mounter.Share, Source: n.source(), Options: []string{"vers=3", "mfsymlinks", "soft"},
		Credentials: mounter.Credentials{Username: n.User, Password: n.password}}
	share := fmt.Sprintf("//%s/%s", source.Server, path.Join(source.Share, source.Path))
	credentials := n.file("credentials", fmt.Sprintf("username=%s\npassword=%s\n", n.User, n.password))
	options := fmt.Sprintf("vers=3.1.1,mfsymlinks,soft,port=%d,credentials=%s", source.Port, credentials)
	mount := map[string]func(){
		"mount(8)":    func() { n.execute("mount", "-t", "cifs", "-o", options, share, at) },
		"the mounter": func() { n.ok(n.mounter.Mount(n.context(time.Minute), m, at)) },
	}
	unmount := map[string]func(){
		"mount(8)":    func() { n.execute("umount", at) },
		"the mounter": func() { n.ok(n.mounter.Unmount(n.context(time.Minute), at)) },
	}
	n.ok(os.MkdirAll(at, 0o755))
	_, err = n.backend.Create(n.context(time.Minute), n.request("warm"))
	n.ok(err)
	times := map[string][]time.Duration{}
	for i := range rounds {
		begin := time.Now()
		v, err := n.backend.Create(n.context(time.Minute), n.request(fmt.Sprint("fast-", i)))
		n.ok(err)
		n.ok(n.backend.Delete(n.context(time.Minute), v.ID, nil))
		times["ours"] = append(times["ours"], time.Since(begin))
		for name := range mount {
			begin := time.Now()
			mount[name]()
			n.ok(os.Mkdir(filepath.Join(at, "dir"), 0o777))
			unmount[name]()
			mount[name]()
			n.ok(os.Remove(filepath.Join(at, "dir")))
			unmount[name]()
			times[name] = append(times[name], time.Since(begin))
		}
	}
	for _, all := range times {
		slices.Sort(all)
	}
	ours := times["ours"][rounds/2]
	for name := range mount {
		ratio := float64(times[name][rounds/2]) / float64(ours)
		n.Logf("create and delete: %s; with %s: %s; ratio %.1f (medians of %d)", ours, name, times[name][rounds/2],
			ratio, rounds)
		if ratio < 1 {
			n.Errorf("%s is faster", name)
		}
	}
}

// execute runs a program.
func (n *node) execute(name string, args ...string) {
	n.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		n.Fatalf("%s: %v: %s", name, err, out)
	}
}

// connections returns the numbers of connections, sessions and signed sessions of the kernel with
// servers. The servers do not demand signatures.
func (n *node) connections() (connections, sessions, signed int) {
	n.Helper()
	text, err := os.ReadFile("/proc/fs/cifs/DebugData")
	n.ok(err)
	return len(regexp.MustCompile(`(?m)ConnectionId:`).FindAllString(string(text), -1)),
		len(regexp.MustCompile(`SessionId:`).FindAllString(string(text), -1)),
		len(regexp.MustCompile(`SessionId:.* signed`).FindAllString(string(text), -1))
}

func (n *node) sharesSessions() {
	const volumes = 200
	var all []*csi.Volume
	for i := range volumes {
		v := n.volume(fmt.Sprint("many-", i))
		n.ok(n.stage(v, strconv.Itoa(5000+i), n.password, time.Minute))
		n.ok(n.publish(v, "target-"+n.name(v), strconv.Itoa(5000+i), "", time.Minute))
		n.ok(os.WriteFile(n.at("target-"+n.name(v), "file"), []byte("x"), 0o600))
		info, err := os.Stat(n.at("target-"+n.name(v), "file"))
		n.ok(err)
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != uint32(5000+i) {
			n.Errorf("the file of volume %d has the group %d", i, gid)
		}
		all = append(all, v)
	}
	connections, sessions, signed := n.connections()
	if signed != sessions {
		n.Errorf("%d of %d sessions are signed", signed, sessions)
	}
	n.Logf("%d volumes: %d connections, %d sessions; the driver, and the test: %+v", volumes, connections, sessions, n.level())
	if connections != 1 || sessions != 1 {
		n.Errorf("%d volumes have %d connections and %d sessions, want 1 and 1", volumes, connections, sessions)
	}
	if err := n.publish(all[0], "other", "77", "", time.Minute); status.Code(err) != codes.FailedPrecondition {
		n.Errorf("a publish with another group: %v", err)
	}
	for _, v := range all {
		n.end(v, "target-"+n.name(v))
	}
}

func (n *node) verifiesPasswords() {
	v, other := n.volume("pass-1"), n.volume("pass-2")
	n.ok(n.stage(v, "", n.password, time.Minute))
	if err := n.stage(other, "", "wrong", time.Minute); status.Code(err) != codes.Unauthenticated {
		n.Errorf("a stage with a wrong password: %v", err)
	}
	n.end(v)
	n.end(other)
}

func (n *node) survivesSilence() {
	v, unstaged := n.volume("silent"), n.volume("unstaged")
	n.ok(n.stage(v, "", n.password, time.Minute))
	n.ok(n.publish(v, "first", "", "", time.Minute))
	n.ok(n.Do("silence", ""))
	resumed := sync.OnceFunc(func() { n.ok(n.Do("resume", "")) })
	defer resumed()
	n.ok(n.publish(v, "second", "", "", time.Minute))
	n.ok(n.unpublish(v, "second", time.Minute))
	if err := n.stage(unstaged, "", n.password, time.Minute); status.Code(err) != codes.Unavailable &&
		status.Code(err) != codes.DeadlineExceeded {
		n.Errorf("a stage: %v", err)
	}
	health, err := n.NodeGetVolumeHealth(n.context(20*time.Second), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})
	if err != nil || !strings.Contains(health.String(), "ServerUnreachable") {
		n.Errorf("health: %v, %v", health, err)
	}
	n.statistics(v, 100)
	before := n.level()
	n.statistics(v, 1000)
	await.True(n, "the helpers of the calls have ended", func() bool { return n.helpers() == 0 })
	read := make(chan error, 1) // keeps the mount busy until the unpublish ends it
	go func() {
		_, err := n.NodeGetVolumeStats(n.context(time.Minute), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(),
			VolumePath: n.at("first")})
		read <- err
	}()
	await.True(n, "a helper reads the statistics", func() bool { return n.helpers() > 0 || len(read) > 0 })
	begin := time.Now() // the kernel of the guest runs programs some 30 times slower than the machine
	n.ok(n.unpublish(v, "first", time.Minute))
	unpublished := time.Now()
	n.ok(n.unstage(v, time.Minute))
	n.Logf("on a silent server: unpublish %s, unstage %s", unpublished.Sub(begin), time.Since(unpublished))
	if err := <-read; err == nil {
		n.Error("the statistics of a silent share")
	}
	await.NoError(n, "1,000 calls have left nothing", func() error {
		if now := n.level(); !now.within(before) {
			return fmt.Errorf("after 1,000 calls: %+v, before: %+v", now, before)
		}
		return nil
	})
	resumed()
	n.ok(n.stage(v, "", n.password, time.Minute))
	n.end(v)
	n.end(unstaged)
}

// statistics asks for the statistics of a volume on a silent server.
func (n *node) statistics(v *csi.Volume, calls int) {
	var group sync.WaitGroup
	slots := make(chan struct{}, 50)
	for range calls {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := n.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(),
				VolumePath: n.at("first")})
			if err == nil {
				n.Error("the statistics of a silent share")
			}
		})
	}
	group.Wait()
}

// helpers returns the number of helper processes.
func (n *node) helpers() (helpers int) {
	n.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.ok(err)
	for _, file := range all {
		if line, _ := os.ReadFile(file); string(line) == "causeway-helper\x00" {
			helpers++
		}
	}
	return helpers
}

// level has the figures that calls which hang would raise.
type level struct{ goroutines, threads, heap, helpers int }

// within reports whether l is not above another level, apart from noise: a thread, a goroutine or
// memory for each call would be. Go keeps the threads that calls at the same time needed.
func (l level) within(other level) bool {
	return l.goroutines <= other.goroutines+5 && l.threads <= other.threads+40 && l.heap <= other.heap+2<<20 &&
		l.helpers <= other.helpers
}

func (n *node) level() level {
	n.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	n.ok(err)
	children, err := filepath.Glob("/proc/[0-9]*/exe")
	n.ok(err)
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return level{runtime.NumGoroutine(), len(threads), int(memory.HeapAlloc), len(children)}
}

// survivesDeath: a process in a published volume appends to a file while the server is away.
func (n *node) survivesDeath() {
	v := n.volume("dead")
	n.ok(n.stage(v, "", n.password, time.Minute))
	n.ok(n.publish(v, "pod", "", "", time.Minute))
	file, err := os.OpenFile(n.at("pod", "log"), os.O_CREATE|os.O_RDWR, 0o600)
	n.ok(err)
	defer file.Close()
	_, err = file.WriteString("before ")
	n.ok(errors.Join(err, file.Sync()))
	n.ok(n.Do("kill", ""))
	time.Sleep(90 * time.Second)
	n.ok(n.publish(v, "during", "", "", time.Minute))
	n.ok(n.Do("restart", ""))
	begin := time.Now()
	await.NoError(n, "the open file works", func() error {
		_, err := file.WriteAt([]byte("after"), 7)
		if err == nil {
			err = file.Sync()
		}
		return err
	})
	n.Logf("the open file works %s after the return of the server", time.Since(begin))
	for _, target := range []string{"pod", "during"} {
		got, err := os.ReadFile(n.at(target, "log"))
		if err != nil || string(got) != "before after" {
			n.Errorf("%s: %q, %v", target, got, err)
		}
	}
	file.Close()
	n.end(v, "pod", "during")
}

// rotates changes the password of the server. Kernels before 6.9 keep the old one.
func (n *node) rotates() {
	v := n.volume("rotated")
	n.ok(n.stage(v, "4242", n.password, time.Minute))
	n.ok(n.publish(v, "pod", "4242", n.password, time.Minute))
	before := n.options()
	n.hasNoSecrets(n.password)
	if table := n.options(); !strings.Contains(table, "username="+n.User) || !strings.Contains(n.log.String(), "rotated") {
		n.Errorf("neither the mount table nor the log was searched: %s", table)
	}
	const next = "ne,xt"
	n.ok(n.Do("password", next))
	defer n.Do("password", n.password)
	n.ok(n.publish(v, "pod", "4242", "wrong", time.Minute)) // never an error
	n.wantCondition(v, "CredentialsNotVerified")
	n.ok(n.publish(v, "pod", "4242", next, time.Minute))
	if after := n.options(); after != before {
		n.Errorf("options of the mount are %s, want %s as before", after, before)
	}
	n.ok(n.Do("kill", ""))
	n.ok(n.Do("restart", ""))
	health, err := n.NodeGetVolumeHealth(n.context(20*time.Second), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})
	n.ok(err)
	kept := strings.Contains(health.String(), "CredentialsNotChanged")
	if kept != n.keepsPasswords() {
		n.Errorf("health: %v, want the condition CredentialsNotChanged: %v", health, !kept)
	}
	if !kept {
		await.NoError(n, "the mount heals", func() error { return os.WriteFile(n.at("pod", "new"), []byte("x"), 0o600) })
		n.ok(os.Symlink("new", n.at("pod", "link")))
		info, err := os.Stat(n.at("pod", "link"))
		n.ok(err)
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 4242 || info.Mode().Perm() != 0o777 {
			n.Errorf("a new file has the group %d and the mode %s", gid, info.Mode())
		}
	} else {
		n.Log("this kernel cannot change the password of a mount")
	}
	n.ok(n.Do("password", n.password))
	n.end(v, "pod")
}

// keepsPasswords reports whether the kernel cannot change the password of a mount: before Linux
// 6.9.
func (n *node) keepsPasswords() bool {
	n.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	n.ok(err)
	var major, minor int
	_, err = fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	n.ok(err)
	return major < 6 || (major == 6 && minor < 9)
}

// wantCondition checks that a volume has a condition.
func (n *node) wantCondition(v *csi.Volume, reason string) {
	n.Helper()
	health, err := n.NodeGetVolumeHealth(n.context(20*time.Second), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetVolumeId()})
	if err != nil || !strings.Contains(health.String(), reason) {
		n.Errorf("health: %v, %v, want %s", health, err, reason)
	}
}

// options returns the options of the cifs mounts in the mount table.
func (n *node) options() string {
	n.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	n.ok(err)
	var all []string
	for line := range strings.Lines(string(table)) {
		if _, options, ok := strings.Cut(line, " - cifs "); ok {
			all = append(all, options)
		}
	}
	return strings.Join(all, "")
}
