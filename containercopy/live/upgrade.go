package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// next is the tag of the next version of container copy. No release exists yet. The next version is
// built from these sources, with a field that this version does not know in each message of a
// stream, and in each call of an agent and its answer.
const next = "next"

// later is the field. It is long, so that the compiler keeps it in one piece, in which run finds
// it.
const later = `,"later":"a field of the next version of the messages, which this version does not know"}`

// edit is a change of a source.
type edit struct {
	file  string // in the folder of container copy
	old   string
	new   string
	times int // that old is in the file
}

// calls is the source of the calls of an agent.
const calls = "api/v1alpha1/copy_grpc.pb.go"

// edits make the next version. The number 1000 is that of no field of a call.
var edits = []edit{
	{"wire/wire.go", "text, err := json.Marshal(v)\n",
		"text, err := json.Marshal(v)\ntext = append(text[:len(text)-1], `" + later + "`...)\n", 1},
	{calls, "	cOpts := append(", "	addLater(in)\n	cOpts := append(", 4},
	{calls, "return srv.(ContainerCopyServer).CopyToContainer(ctx, req.(*CopyToContainerRequest))",
		"return withLater(srv.(ContainerCopyServer).CopyToContainer(ctx, req.(*CopyToContainerRequest)))", 1},
	{calls, "return srv.(ContainerCopyServer).CopyFromContainer(ctx, req.(*CopyFromContainerRequest))",
		"return withLater(srv.(ContainerCopyServer).CopyFromContainer(ctx, req.(*CopyFromContainerRequest)))", 1},
	{calls, "	context \"context\"\n", `	context "context"
	protowire "google.golang.org/protobuf/encoding/protowire"
	proto "google.golang.org/protobuf/proto"
`, 1},
	{calls, "type containerCopyClient struct {", `func addLater(m proto.Message) {
	tag := protowire.AppendTag(nil, 1000, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(tag, ` + "`" + later + "`" + `))
}

func withLater[M proto.Message](m M, err error) (M, error) {
	if err == nil {
		addLater(m)
	}
	return m, err
}

type containerCopyClient struct {`, 1},
}

// buildNext builds the next version.
func (p play) buildNext() error {
	replaced := map[string]string{}
	for i, e := range edits {
		source := filepath.Join(folder(), e.file)
		from := cmp.Or(replaced[source], source)
		code, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if n := bytes.Count(code, []byte(e.old)); n != e.times {
			return fmt.Errorf("%s has %q %d times, want %d", source, e.old, n, e.times)
		}
		replaced[source] = p.path(fmt.Sprintf("edited-%d.go", i))
		code = bytes.ReplaceAll(code, []byte(e.old), []byte(e.new))
		if err := os.WriteFile(replaced[source], code, 0o644); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.path("overlay.json"), overlay, 0o644); err != nil {
		return err
	}
	if err := p.build(next, "GOFLAGS=-buildvcs=false -overlay="+p.path("overlay.json")); err != nil {
		return err
	}
	program, err := os.ReadFile(p.path("plugin-" + next + "/kubectl-copy"))
	if err == nil && !bytes.Contains(program, []byte(later)) {
		err = errors.New("the next version of the plugin is this one")
	}
	return err
}

// roll replaces the API servers or the agents by those of a version.
func (p play) roll(object, container, version string) error {
	if err := p.show("-n", namespace, "set", "image", object,
		container+"=ghcr.io/causeway-csi/copy-"+container+":"+version); err != nil {
		return err
	}
	return p.show("-n", namespace, "rollout", "status", object, "--timeout=120s")
}

// run returns an error unless all processes of a program on the nodes have a version, and the
// workers beside the agents.
func (p play) run(program, version string) error {
	nodes, err := p.cluster.Nodes()
	if err != nil {
		return err
	}
	find := `for p in $(pgrep -x ` + program + `); do
		for f in /proc/$p/exe $(ls /proc/$p/root/worker/worker 2>/dev/null); do
			if grep -qaF '` + later + `' $f; then echo ` + next + `; else echo dev; fi
		done
	done`
	seen := map[string]int{}
	for _, n := range nodes {
		out, err := n.Run(p.ctx, "sh", "-c", find)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for _, v := range strings.Fields(out) {
			seen[v]++
		}
	}
	if len(seen) != 1 || seen[version] < 2 {
		return fmt.Errorf("the programs %s have the versions %v, want %s", program, seen, version)
	}
	return nil
}

const (
	servers = "deployment/" + fullname + "-apiserver"
	agents  = "daemonset/" + fullname + "-agent"
)

// upgrade replaces the API servers and then the agents by those of the next version while copies
// are in progress, and rolls them back in the same order. The plugins of both versions copy with
// each combination.
func (p play) upgrade() error {
	say("The next version of all programs")
	if err := p.buildNext(); err != nil {
		return err
	}
	say("The API servers are upgraded: the copy in progress ends well")
	h, err := p.holdCopy("-", "bare:/scratch/drained")
	if err != nil {
		return err
	}
	defer h.kill() // it has ended, but after an error
	if err := p.roll(servers, "apiserver", next); err != nil {
		return err
	}
	if err := h.end(0, ""); err != nil {
		return err
	}
	if err := p.bothPlugins("newer-servers", next, "dev"); err != nil {
		return err
	}
	say("The agents are upgraded: the copy in progress fails, and nothing of it is left")
	if h, err = p.holdCopy("-", "bare:/directory/lost"); err != nil {
		return err
	}
	defer h.kill()
	if err := p.show("-n", namespace, "set", "image", agents,
		"agent=ghcr.io/causeway-csi/copy-agent:"+next); err != nil {
		return err
	}
	if err := h.await(1, "the agent of the node ends"); err != nil {
		return err
	}
	if err := p.roll(agents, "agent", next); err != nil {
		return err
	}
	if err := until(func() error { return p.clean("bare:/directory", "lost") }); err != nil {
		return err
	}
	if err := p.bothPlugins("newer-both", next, next); err != nil {
		return err
	}
	say("The API servers are rolled back")
	if err := p.roll(servers, "apiserver", "dev"); err != nil {
		return err
	}
	if err := p.bothPlugins("newer-agents", "dev", next); err != nil {
		return err
	}
	say("The agents are rolled back")
	if err := p.roll(agents, "agent", "dev"); err != nil {
		return err
	}
	return p.bothPlugins("rolled-back", "dev", "dev")
}

// bothPlugins waits until the API servers and the agents have the given versions only, and copies a
// directory to a container and back, with the plugin of each version.
func (p play) bothPlugins(name, server, agent string) error {
	if err := until(func() error {
		return errors.Join(p.run("apiserver", server), p.run("agent", agent))
	}); err != nil {
		return err
	}
	for _, version := range []string{"dev", next} {
		q := p
		q.plugin = p.path("plugin-" + version)
		there, back := "bare:/scratch/"+name+"-"+version, name+"-"+version
		if err := q.copy(0, "", "--checksum=sha256", p.path("tree"), there); err != nil {
			return err
		}
		if err := q.copy(0, "", "--checksum=sha256", there, p.path(back)); err != nil {
			return err
		}
		if err := p.same("tree", back); err != nil {
			return err
		}
	}
	return nil
}

// planeEnds ends kube-apiserver by SIGKILL, and with it the control plane: the copy in progress
// fails, and its node removes the unfinished files. It is the last step in a cluster.
func (p play) planeEnds() error {
	say("SIGKILL for kube-apiserver: the copy in progress fails, and nothing of it is left")
	uid, err := p.kubectl.Run(p.ctx, "get", "pod", "user", "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}
	h, err := p.holdCopy("-", "user:/scratch/plane")
	if err != nil {
		return err
	}
	defer h.kill() // it has ended, but after an error

	// Without files before the kill, the check after it would prove nothing.
	if err := until(func() error {
		left, err := p.unfinished(uid)
		if err == nil && left == "" {
			err = errors.New("the copy in progress has no files")
		}
		return err
	}); err != nil {
		return err
	}
	server, err := p.kubeAPIServer()
	if err != nil {
		return err
	}
	if err := server.Kill(); err != nil {
		return err
	}
	if err := h.await(1, "connection ended"); err != nil {
		return err
	}
	ended := time.Now()
	for {
		left, err := p.unfinished(uid)
		if err != nil || left == "" {
			return err
		}
		if time.Since(ended) > 30*time.Second { // before the idle timeout of a minute
			return fmt.Errorf("left:\n%s", left)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// unfinished returns the files of a copy to the directory scratch of a pod, on its node.
func (p play) unfinished(uid string) (string, error) {
	nodes, err := p.cluster.Nodes()
	if err != nil {
		return "", err
	}
	for _, n := range nodes {
		dir := "/var/lib/kubelet/pods/" + strings.TrimSpace(uid) + "/volumes/kubernetes.io~empty-dir/scratch"
		if _, err := n.Run(p.ctx, "test", "-d", dir); err == nil {
			return n.Run(p.ctx, "find", dir, "(", "-name", "plane", "-o", "-name", ".kcopy-*", ")")
		}
	}
	return "", fmt.Errorf("no node has the pod %s", uid)
}

// kubeAPIServer returns the process of kube-apiserver of the cluster: several clusters may be on
// this machine.
func (p play) kubeAPIServer() (*os.Process, error) {
	server, err := p.kubectl.Run(p.ctx, "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
	if err != nil {
		return nil, err
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(server), "https://"), ":")
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, path := range lines {
		args, _ := os.ReadFile(path) // an error is that it has ended
		program, _, _ := bytes.Cut(args, []byte{0})
		if filepath.Base(string(program)) != "kube-apiserver" ||
			!bytes.Contains(args, []byte("\x00--bind-address="+host+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		return os.FindProcess(pid)
	}
	return nil, fmt.Errorf("no kube-apiserver has the address %s", host)
}
