package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/readiness"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// guests are the nodes of TestGuests: one guest with each kernel.
var guests = provider.Options{Nodes: 1, Guests: []string{"6.1", "6.12"}, Log: os.Stderr}

// needsGuests skips a test on a machine that cannot have guests.
func needsGuests(t *testing.T) {
	t.Helper()
	if _, err := guestKernels(guests.Guests); err != nil {
		t.Skip(err)
	}
}

func TestKernelsOfGuests(t *testing.T) {
	if _, err := guestKernels([]string{"6.1", "6.6"}); err == nil || !strings.Contains(err.Error(), "6.12") {
		t.Errorf("a kernel that no guest has: %v", err)
	}
	if all, err := guestKernels(nil); err != nil || all != nil {
		t.Errorf("no guests: %q, %v", all, err)
	}
}

// TestGuests: guests are nodes like others. Up returns when pods on them have found the API server
// by its name.
func TestGuests(t *testing.T) {
	needsGuests(t)
	c := cluster(t)
	ctx := t.Context()
	if err := c.Up(ctx, guests); err != nil {
		t.Fatal(err)
	}
	all := nodes(t, c)
	first, second := all[1], all[2]
	t.Run("up again finds them", func(t *testing.T) {
		before, err := c.inits()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Up(ctx, guests); err != nil {
			t.Fatal(err)
		}
		if after, err := c.inits(); err != nil || !slices.Equal(before, after) {
			t.Errorf("the init processes were %v, and are %v, %v", before, after, err)
		}
		other := guests
		other.Guests = []string{"6.12", "6.1"}
		if err := c.Up(ctx, other); err == nil || !strings.Contains(err.Error(), "guests") {
			t.Errorf("up with other guests: %v", err)
		}
	})
	t.Run("kernels", func(t *testing.T) {
		for i, n := range []Node{first, second} {
			if out := on(t, n, "uname", "-r"); !n.Guest() || !strings.HasPrefix(out, guests.Guests[i]+".") {
				t.Errorf("%s has the kernel %s", n.Name, out)
			}
			if out := on(t, n, "sh", "-c", "modprobe cifs && modprobe dm_mod && grep -w cifs /proc/filesystems"); out == "" {
				t.Errorf("%s has no cifs", n.Name)
			}
		}
	})
	t.Run("the data disks count projects", func(t *testing.T) {
		for _, n := range []Node{first, second} {
			if out := on(t, n, "grep", " "+StorageDir+" xfs ", "/proc/mounts"); !strings.Contains(out, "prjquota") {
				t.Errorf("%s has %s", n.Name, out)
			}
		}
	})
	t.Run("commands", func(t *testing.T) {
		_, err := first.Run(ctx, "sh", "-c", "echo out; echo err >&2; exit 7")
		if err == nil {
			t.Fatal("a command that fails has no error")
		}
		// The two streams come separately, in either order.
		_, printed, _ := strings.Cut(err.Error(), "exit status 7: ")
		if p := slices.Sorted(strings.FieldsSeq(printed)); !slices.Equal(p, []string{"err", "out"}) {
			t.Errorf("a command that fails: %v", err)
		}
		if _, err := first.Run(ctx, "no-such-program"); err == nil || !strings.Contains(err.Error(), "exit status 127") {
			t.Errorf("a program that does not exist: %v", err)
		}
		cmd, err := first.Command(ctx, "cat")
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		cmd.Stdin = bytes.NewReader(sent)
		if out, err := cmd.Output(); err != nil || !bytes.Equal(out, sent) {
			t.Errorf("cat of %d bytes: %d bytes, %v", len(sent), len(out), err)
		}
		checkCancel(t, first)
	})
	t.Run("listeners", func(t *testing.T) {
		l, err := first.Listen(ctx, first.Address+":2222")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if conn, err := l.Accept(); err == nil {
				io.Copy(conn, conn)
				conn.Close()
			}
		}()
		conn, err := net.DialTimeout("tcp", first.Address+":2222", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "hello")
		conn.(*net.TCPConn).CloseWrite()
		if back, err := io.ReadAll(conn); err != nil || string(back) != "hello" {
			t.Errorf("the listener sent %q, %v back", back, err)
		}
	})
	t.Run("pods reach servers of this machine", func(t *testing.T) {
		address, err := c.MachineAddress()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(conn, "here")
				conn.Close()
			}
		}()
		client, err := c.client()
		if err != nil {
			t.Fatal(err)
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := readiness.TryPods(ctx, client, testimages.Busybox, []string{"node-1", first.Name, second.Name}, "sh", "-c",
			"for i in 1 2 3 4 5; do nc -w 2 "+address+" "+port+" </dev/null | grep here && exit; done; exit 1"); err != nil {
			t.Error(err)
		}
	})
	t.Run("logs", func(t *testing.T) {
		dir := t.TempDir()
		if err := c.Logs(ctx, dir); err != nil {
			t.Fatal(err)
		}
		for _, pattern := range []string{"components/console.log", "components/kubelet.log", "init/init.log"} {
			path := filepath.Join(dir, second.Name, pattern)
			if info, err := os.Stat(path); err != nil || info.Size() == 0 {
				t.Errorf("%s is empty, or %v", path, err)
			}
		}
	})
	t.Run("a program that is killed is back", func(t *testing.T) {
		was := on(t, first, "cat", c.node(first.Name).pid("kubelet"))
		if err := first.Hold("kubelet"); err != nil {
			t.Fatal(err)
		}
		if held, err := first.Held("kubelet"); err != nil || !held {
			t.Errorf("held: %v, %v", held, err)
		}
		if err := first.Release("kubelet"); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, "the kubelet is back", func() error {
			is, err := first.Run(ctx, "cat", c.node(first.Name).pid("kubelet"))
			if err == nil && is == was {
				err = fmt.Errorf("it still has the PID %s", was)
			}
			return err
		})
	})
	t.Run("the network is cut", func(t *testing.T) {
		client, err := c.client()
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Cut(ctx); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, "the node is given up", func() error { return notReady(ctx, client, second.Name) })
		if out := on(t, second, "uname", "-n"); strings.TrimSpace(out) != second.Name {
			t.Errorf("a command on a node without its network: %q", out)
		}
		if err := second.Reconnect(ctx); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, "the node is ready", func() error { return readiness.Ready(ctx, client, second.Name) })
	})
	t.Run("power", func(t *testing.T) {
		client, err := c.client()
		if err != nil {
			t.Fatal(err)
		}
		was, err := client.CoreV1().Nodes().Get(ctx, first.Name, meta.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		file := StorageDir + "/file"
		on(t, first, "sh", "-c", "echo durable > "+file+" && sync "+file+" && echo lost > /run/file")
		on(t, first, "sync", c.node(first.Name).pid("containerd"), c.node(first.Name).pid("kubelet"))
		if err := first.PowerOff(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Run(ctx, "true"); err == nil {
			t.Error("a command runs on a node that is off")
		}
		if err := first.PowerOn(ctx, true); err != nil {
			t.Fatal(err)
		}
		if out := on(t, first, "sh", "-c", "cat "+file+"; test ! -e /run/file"); out != "durable\n" {
			t.Errorf("the disk has %q", out)
		}
		// Commands come before the kubelet: a PID file of the former life would be there still.
		if wrong := wrongPIDs(t, first); wrong != "" {
			t.Errorf("PID files of the former life: %s", wrong)
		}
		await.NoError(t, "the node is ready after its start", func() error {
			is, err := client.CoreV1().Nodes().Get(ctx, first.Name, meta.GetOptions{})
			if err == nil && is.Status.NodeInfo.BootID == was.Status.NodeInfo.BootID {
				err = errors.New("the API server knows the former life of the node only")
			}
			return errors.Join(err, readiness.Ready(ctx, client, first.Name))
		})
		if err := readiness.TryPods(ctx, client, testimages.Busybox, []string{first.Name}, "true"); err != nil {
			t.Error(err)
		}
	})
	t.Run("the leftovers list the processes of guests", func(t *testing.T) {
		left, err := c.Leftovers()
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"process ", "qemu-system"} {
			if !slices.ContainsFunc(left, func(s string) bool { return strings.Contains(s, what) }) {
				t.Errorf("no %s in %q", what, left)
			}
		}
	})
}

// checkCancel checks that a command on a node ends with its context.
func checkCancel(t *testing.T, n Node) {
	t.Helper()
	running := func() string { return on(t, n, "sh", "-c", "ps ax | grep '[s]leep 1234' || :") }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := n.Run(ctx, "sleep", "1234")
		ended <- err
	}()
	await.True(t, "the command runs", func() bool {
		if len(ended) > 0 {
			t.Fatalf("the command returned %v", <-ended)
		}
		return running() != ""
	})
	cancel()
	if err := await.Receive(t, "the command has ended", ended); err == nil {
		t.Error("a command whose context is canceled has no error")
	}
	await.NoError(t, "nothing of the command runs", func() error {
		if out := running(); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// notReady returns nil if the API server answers that a node is not ready.
func notReady(ctx context.Context, client kubernetes.Interface, name string) error {
	n, err := client.CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == core.NodeReady && c.Status != core.ConditionTrue {
			return nil
		}
	}
	return errors.New("it is ready")
}

// wrongPIDs returns the PID files of a node that name processes of other programs, or none. A file
// may change while the script reads it.
func wrongPIDs(t *testing.T, n Node) string {
	t.Helper()
	return on(t, n, "sh", "-c", `for program in containerd kubelet kube-proxy; do
	file="$0/$program.pid"
	pid=$(cat "$file" 2>/dev/null) || continue
	is=$(cat "/proc/$pid/comm" 2>/dev/null)
	test "$is" = "$program" || test "$(cat "$file" 2>/dev/null)" != "$pid" || echo "$program: process $pid is \"$is\""
done`, n.cluster.node(n.Name).dir)
}
