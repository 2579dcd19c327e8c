package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/causeway-csi/causeway/test/cluster/sshserver"
)

// Files of a node's own directory: the keys of both sides of the connection on which commands reach
// a guest. The private key of the client stays on this machine.
const (
	sshHostKey         = "ssh-host.key"
	sshHostPublicKey   = "ssh-host.pub"
	sshClientKey       = "ssh-client.key"
	sshClientPublicKey = "ssh-client.pub"
)

// makeSSHKeys makes both pairs of keys.
func makeSSHKeys(own nodeFiles) error {
	for privateFile, publicFile := range map[string]string{sshHostKey: sshHostPublicKey,
		sshClientKey: sshClientPublicKey} {
		private, public, err := sshserver.NewKey()
		if err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(own.of(privateFile), private, 0o600),
			os.WriteFile(own.of(publicFile), public, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// sshKeys returns a side's own key, and the key of the other side.
func sshKeys(own nodeFiles, private, public string) (ssh.Signer, ssh.PublicKey, error) {
	data, err := os.ReadFile(own.of(private))
	if err != nil {
		return nil, nil, err
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, nil, err
	}
	if data, err = os.ReadFile(own.of(public)); err != nil {
		return nil, nil, err
	}
	other, _, _, _, err := ssh.ParseAuthorizedKey(data)
	return signer, other, err
}

// runOnGuest runs a command on a guest, with the standard streams of this process, and ends this
// process with the command's exit code. This process is in the network of the guest's init process.
func runOnGuest(ctx context.Context, own nodeFiles, argv []string) error {
	var client *ssh.Client
	// The guest may be starting.
	err := waitFor(ctx, "the guest", func() (err error) {
		client, err = dialGuest(ctx, own)
		return err
	})
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	// Wait would wait for the end of Stdin.
	stdin, err := session.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		io.Copy(stdin, os.Stdin)
		stdin.Close()
	}()
	session.Stdout, session.Stderr = os.Stdout, os.Stderr
	command, err := json.Marshal(argv)
	if err != nil {
		return err
	}
	err = session.Run(string(command))
	if exit := (*ssh.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitStatus())
	}
	if err == nil {
		os.Exit(0)
	}
	return err
}

// dialGuest connects to the server in the guest, from the network of its init process. The emulator
// accepts connections before that server.
func dialGuest(ctx context.Context, own nodeFiles) (*ssh.Client, error) {
	signer, host, err := sshKeys(own, sshClientKey, sshHostPublicKey)
	if err != nil {
		return nil, err
	}
	config := &ssh.ClientConfig{User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.FixedHostKey(host)}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	address := net.JoinHostPort("127.0.0.1", sshPort)
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if !stop() || err != nil {
		return nil, errors.Join(err, ctx.Err(), conn.Close())
	}
	return ssh.NewClient(c, channels, requests), nil
}

// guestListener is a listener in a guest, at the end of a connection of its own.
type guestListener struct {
	net.Listener
	client *ssh.Client
}

func (l guestListener) Close() error { return l.client.Close() }

// listenInGuest is Listen for a guest, which passes connections on. RFC 4254, 7.
func (n Node) listenInGuest(ctx context.Context, address string) (net.Listener, error) {
	i, err := n.cluster.init(n.Name)
	if err != nil {
		return nil, err
	}
	var client *ssh.Client
	if err := enterNetwork(i.pid, func() (err error) {
		client, err = dialGuest(ctx, n.cluster.node(n.Name))
		return err
	}); err != nil {
		return nil, err
	}
	l, err := client.Listen("tcp", address)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return guestListener{l, client}, nil
}

// serveCommands serves the commands of runOnGuest in the guest, and the listeners of listenInGuest.
func serveCommands(own nodeFiles, d *daemons) error {
	signer, client, err := sshKeys(own, sshHostKey, sshClientPublicKey)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(insideAddress, sshPort))
	if err != nil {
		return err
	}
	server := sshserver.Server{Host: signer, Client: client, Run: d.serveCommand, Global: serveListeners}
	go func() {
		say("commands are served no more: " + server.Serve(l).Error())
	}()
	return nil
}

// serveListeners listens for a client, until the connection ends. RFC 4254, 7.1.
func serveListeners(c *ssh.ServerConn, requests <-chan *ssh.Request) {
	var all []net.Listener
	for r := range requests {
		var at forwarded
		if r.Type != "tcpip-forward" || ssh.Unmarshal(r.Payload, &at) != nil {
			r.Reply(false, nil)
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(at.Address, strconv.Itoa(int(at.Port))))
		r.Reply(err == nil, nil)
		if err == nil {
			all = append(all, l)
			go at.pass(c, l)
		}
	}
	for _, l := range all {
		l.Close()
	}
}

// forwarded is the address of a listener of a client.
type forwarded struct {
	Address string
	Port    uint32
}

// pass passes the connections of a listener to the client. RFC 4254, 7.2.
func (at forwarded) pass(c *ssh.ServerConn, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			from, _ := conn.RemoteAddr().(*net.TCPAddr)
			channel, requests, err := c.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
				Address string
				Port    uint32
				From    string
				Origin  uint32
			}{at.Address, at.Port, from.IP.String(), uint32(from.Port)}))
			if err != nil {
				return
			}
			defer channel.Close()
			go ssh.DiscardRequests(requests)
			go func() {
				io.Copy(channel, conn)
				channel.CloseWrite()
			}()
			io.Copy(conn, channel)
		}()
	}
}

// serveCommand runs the command of a session, which is a list of arguments as JSON. The end of the
// connection kills it. If the command did not start, the exit code is that of a shell for the
// error.
func (d *daemons) serveCommand(s sshserver.Session) int {
	var argv []string
	if err := json.Unmarshal([]byte(s.Command), &argv); err != nil || len(argv) == 0 {
		fmt.Fprintf(s.Stderr(), "command %q: must be a list of arguments as JSON\n", s.Command)
		return 127
	}
	code, err := d.execute(s, argv)
	if err != nil {
		fmt.Fprintln(s.Stderr(), err)
	}
	return code
}

func (d *daemons) execute(s sshserver.Session, argv []string) (int, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = s, s.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe() // Wait would wait for the end of Stdin
	if err != nil {
		return 126, err
	}
	waited, err := d.start(cmd)
	if err != nil {
		return 127, err
	}
	go func() {
		io.Copy(stdin, s)
		stdin.Close()
	}()
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case r, open := <-s.Requests:
				if !open {
					syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
					return
				}
				if r.WantReply {
					r.Reply(false, nil)
				}
			case <-ended:
				return
			}
		}
	}()
	cmd.WaitDelay = 5 * time.Second // for processes that it leaves behind with its output
	err = cmd.Wait()
	close(ended)
	waited()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() >= 0 {
		return cmd.ProcessState.ExitCode(), nil
	}
	return 255, err
}
