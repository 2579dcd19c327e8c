package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
)

// network is a network namespace. A thread of this process runs in it: functions on that thread run
// in the namespace. The namespace ends with the thread and the processes that the thread started.
type network struct {
	thread int
	do     chan func()
}

func newNetwork() (*network, error) {
	n := &network{do: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: a thread of another namespace must serve no other goroutine
		n.thread = unix.Gettid()
		err := unix.Unshare(unix.CLONE_NEWNET)
		ready <- err
		for f := range n.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		close(n.do)
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	return n, nil
}

// end ends the thread, and with it the processes that it started.
func (n *network) end() { close(n.do) }

// in calls f in the namespace.
func (n *network) in(f func() error) (err error) {
	done := make(chan struct{})
	n.do <- func() {
		defer close(done)
		err = f()
	}
	<-done
	return err
}

// ip runs commands of iproute2's ip in the namespace.
func (n *network) ip(commands ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.in(cmd.Start); err != nil {
		return fmt.Errorf("ip: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("ip %q: %w: %s", commands, err, out.String())
	}
	return nil
}

// dial connects from within the namespace.
func (n *network) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = n.in(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// wire is a bridge with all hosts, in a namespace of its own. Its own address belongs to the name
// server, and to each program that is no node.
type wire struct{ *network }

const wireAddress = "10.9.0.1"

func newWire() (*wire, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	w := &wire{n}
	err = w.ip("link set lo up", "link add bridge address 02:00:00:00:00:01 type bridge",
		"addr add "+wireAddress+"/24 dev bridge", "link set bridge up")
	if err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// host is a machine on the wire.
type host struct {
	*network
	name, address string
	wire          *wire
}

// plug puts a new machine on the wire, with an address.
func (w *wire) plug(name, address string) (*host, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	h := &host{network: n, name: name, address: address, wire: w}
	err = w.ip("link add "+h.port()+" type veth peer name "+h.port()+"-in",
		fmt.Sprintf("link set %s-in netns %d", h.port(), n.thread), "link set "+h.port()+" master bridge up")
	if err == nil {
		err = h.ip("link set lo up", "link set "+h.port()+"-in name eth0 address "+hardware(address),
			"addr add "+address+"/24 dev eth0", "link set eth0 up")
	}
	if err != nil {
		h.end()
		return nil, err
	}
	return h, nil
}

// hardware returns the hardware address for an address: so an address that moves to another machine
// is there at once, and does not wait until all others have forgotten the old hardware address.
func hardware(address string) string {
	return "02:00:" + strings.ReplaceAll(fmt.Sprintf("% x", netip.MustParseAddr(address).AsSlice()), " ", ":")
}

// port is the link on the wire's side.
func (h *host) port() string { return "to-" + h.name }

// cut takes the cable out, without a word to anybody who talks over it.
func (h *host) cut() error { return h.wire.ip("link set " + h.port() + " down") }

// repair puts it in again.
func (h *host) repair() error { return h.wire.ip("link set " + h.port() + " up") }

// move gives the machine another address.
func (h *host) move(address string) error {
	err := h.ip("addr del "+h.address+"/24 dev eth0", "link set eth0 address "+hardware(address),
		"addr add "+address+"/24 dev eth0")
	h.address = address
	return err
}

// process is a process on a host.
type process struct {
	cmd    *exec.Cmd
	log    string // where it writes to
	exited chan struct{}
}

// run starts a program. It ends with the host at the latest.
func (h *host) run(log string, env []string, program string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(program, args...), log: log, exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // of the host's thread
	if err := h.in(p.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.cmd.Wait()
	}()
	return p, nil
}

// kill ends the process at once, and waits until it has ended.
func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.exited
}

// stop halts the process where it is, and waits until none of its threads runs any more.
func (p *process) stop(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Error(err)
		return
	}
	await.NoError(t, "all threads have stopped", func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		running := slices.DeleteFunc(threads, func(thread string) bool {
			stat, err := os.ReadFile(thread)
			_, state, _ := strings.Cut(string(stat), ") ")
			return errors.Is(err, os.ErrNotExist) || strings.HasPrefix(state, "T")
		})
		if len(running) > 0 {
			return fmt.Errorf("%q run", running)
		}
		return nil
	})
}

// goOn ends the effect of stop.
func (p *process) goOn() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// killed reports whether the process has been ended by SIGKILL, as a crash point does.
func (p *process) killed() bool {
	select {
	case <-p.exited:
	default:
		return false
	}
	s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

// said returns the output of the process, and of earlier processes with the same log.
func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	return string(text) + errText(err)
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// waiting returns how many bytes are there for the process that it has not read yet, on connections
// to a port.
func (p *process) waiting(port int) (bytes int, err error) {
	for _, family := range []string{"tcp", "tcp6"} {
		table, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.cmd.Process.Pid), "net", family))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if len(f) < 5 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) || f[3] != "01" { // established
				continue
			}
			var sent, received int
			if _, err := fmt.Sscanf(f[4], "%x:%x", &sent, &received); err != nil {
				return 0, err
			}
			bytes += received
		}
	}
	return bytes, nil
}

// check returns the missing requirements of the machine.
func check() error {
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("ip is missing, of the package iproute2")
	}
	w, err := newWire()
	if err != nil {
		return err
	}
	defer w.end()
	h, err := w.plug("test", "10.9.0.9")
	if err != nil {
		return err
	}
	defer h.end()
	return nil
}

// closed closes all resources, also after errors.
func closed(all ...io.Closer) {
	for _, c := range all {
		c.Close()
	}
}
