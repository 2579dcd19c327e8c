package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Node is a Linux node of a running cluster. Its methods do to the node what happens to machines;
// tests call them.
type Node struct {
	cluster *Cluster
	spec    spec
	node
}

// Nodes returns the cluster's nodes. Errors: the cluster was not started.
func (c *Cluster) Nodes() ([]Node, error) {
	s, err := readSpec(c.files)
	if err != nil {
		return nil, fmt.Errorf("cluster %s is not there: %w", c.name, err)
	}
	var all []Node
	for _, n := range s.nodes() {
		all = append(all, Node{c, s, n})
	}
	return all, nil
}

// MachineAddress returns the address of this machine in the network of the nodes.
func (c *Cluster) MachineAddress() (string, error) {
	s, err := readSpec(c.files)
	if err != nil {
		return "", fmt.Errorf("cluster %s is not there: %w", c.name, err)
	}
	return s.address(machineHost), nil
}

// Guest reports whether the node is a guest of QEMU, which has a kernel of its own.
func (n Node) Guest() bool { return n.guest() }

// Login returns a command in all of the node's namespaces, as after a login. It may have this
// process's terminal, but not on a guest. The end of ctx may leave the command running. Errors: the
// node is off.
func (n Node) Login(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	i, err := n.cluster.init(n.Name)
	if err != nil {
		return nil, err
	}
	namespaces := []string{"-m", "-p", "-n", "-u", "-i"}
	if n.guest() { // the emulator forwards a port of its network to the guest
		namespaces = []string{"-n"}
		argv = append([]string{n.cluster.program(), clientRole, n.cluster.dir, n.Name}, argv...)
	}
	cmd := exec.CommandContext(ctx, "nsenter",
		slices.Concat([]string{"-t", strconv.Itoa(i.pid)}, namespaces, []string{"--"}, argv)...)
	cmd.Env = environment(n.spec.Bin + ":/usr/sbin:/usr/bin:/sbin:/bin")
	return cmd, nil
}

// Run runs a command on the node and returns its standard output and error.
func (n Node) Run(ctx context.Context, argv ...string) (string, error) {
	cmd, err := n.Command(ctx, argv...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s on %s: %w: %s", strings.Join(argv, " "), n.Name, err, out)
	}
	return string(out), nil
}

// Command is Login for commands without a terminal: the end of ctx ends the command.
func (n Node) Command(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	cmd, err := n.Login(ctx, argv...)
	if err != nil {
		return nil, err
	}
	// nsenter has a child, which would run on without it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// Cut pulls the node's network cable. Pods on it run on.
func (n Node) Cut(ctx context.Context) error { return n.cable(ctx, "down") }

// Reconnect plugs the node in again.
func (n Node) Reconnect(ctx context.Context) error { return n.cable(ctx, "up") }

func (n Node) cable(ctx context.Context, state string) error {
	plane, err := n.cluster.init("")
	if err != nil {
		return err
	}
	return inNetwork(ctx, plane.pid, "ip", "link", "set", n.port, state).run()
}

// Hold kills a program of the node (containerd, kubelet, kube-proxy) and prevents its restart.
// Containers continue.
func (n Node) Hold(program string) error {
	path := n.cluster.node(n.Name).held(program)
	if n.guest() {
		if err := n.inGuest("touch", path); err != nil {
			return err
		}
	} else if err := os.WriteFile(path, nil, 0o644); err != nil {
		return err
	}
	return n.Kill(program)
}

// Held reports whether a program is held.
func (n Node) Held(program string) (bool, error) {
	path := n.cluster.node(n.Name).held(program)
	if n.guest() {
		out, err := n.Run(context.Background(), "sh", "-c", `test -e "$0" && echo held || true`, path)
		return out != "", err
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Release has a program that was held start again.
func (n Node) Release(program string) error {
	path := n.cluster.node(n.Name).held(program)
	if n.guest() {
		return n.inGuest("rm", "-f", path)
	}
	return os.Remove(path)
}

// inGuest runs a short command on the node, which is a guest.
func (n Node) inGuest(argv ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), nodePatience)
	defer cancel()
	_, err := n.Run(ctx, argv...)
	return err
}

// pid returns the PID of a program in the node. Errors: it does not run.
func (n Node) pid(ctx context.Context, program string) (string, error) {
	path := n.cluster.node(n.Name).pid(program)
	if n.guest() {
		return n.Run(ctx, "cat", path)
	}
	data, err := os.ReadFile(path)
	return string(data), err
}

// Kill kills a program of the node, which starts again at once, and returns when the program has
// ended.
func (n Node) Kill(program string) error {
	ctx, cancel := context.WithTimeout(context.Background(), nodePatience)
	defer cancel()
	was, err := n.pid(ctx, program)
	if err != nil {
		return fmt.Errorf("%s does not run on %s: %w", program, n.Name, err)
	}
	if _, err := n.Run(ctx, "kill", "-9", was); err != nil {
		return err
	}
	return waitFor(ctx, program+" to end", func() error {
		if is, err := n.pid(ctx, program); err == nil && is == was {
			return errors.New("it runs")
		}
		return nil
	})
}

// PowerOff ends the node at once, with all of its processes and mounts. Its disks stay.
func (n Node) PowerOff(ctx context.Context) error {
	if err := n.cluster.killAll(func(i initProcess) bool { return i.node == n.Name }); err != nil {
		return err
	}
	plane, err := n.cluster.init("")
	if err != nil {
		return err
	}
	// The kernel needs a while to remove an unused network, and its cable.
	return waitFor(ctx, n.port+" to go", func() error {
		if inNetwork(ctx, plane.pid, "ip", "link", "show", n.port).Run() == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// PowerOn starts the node after PowerOff, with the data disk mounted or, as after a failure of the
// disk, without. PowerOn does not wait for the kubelet.
func (n Node) PowerOn(ctx context.Context, withDisk bool) error {
	noDisk := n.cluster.node(n.Name).noDisk()
	if withDisk {
		if err := os.Remove(noDisk); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	} else if err := os.WriteFile(noDisk, nil, 0o644); err != nil {
		return err
	}
	plane, err := n.cluster.init("")
	if err != nil {
		return err
	}
	return n.cluster.startNode(ctx, plane.pid, n.node)
}

// Listen listens in the node's network, at an address of the node's, with this process at the other
// end. It serves as a program that other nodes have, such as an SSH server. Errors: the node is
// off.
func (n Node) Listen(ctx context.Context, address string) (l net.Listener, err error) {
	if n.guest() {
		return n.listenInGuest(ctx, address)
	}
	i, err := n.cluster.init(n.Name)
	if err != nil {
		return nil, err
	}
	err = enterNetwork(i.pid, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// enterNetwork calls use on a thread in the network of a process. Sockets that use makes stay
// there.
func enterNetwork(pid int, use func() error) error {
	network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer network.Close()
	done := make(chan error)
	go func() {
		// and never unlocked: the thread ends with the goroutine, as it is of no use in that
		// network
		runtime.LockOSThread()
		if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network of process %d: %w", pid, err)
			return
		}
		done <- use()
	}()
	return <-done
}
