package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/causeway-csi/causeway/test/cluster/local"
)

// sshd is the SSH server that the suite expects on nodes: disruptive specs stop the kubelet and
// list mounts through it. A local cluster's nodes have no such server, and no systemd: this is the
// part of both that the suite needs.
type sshd struct {
	node   local.Node
	config *ssh.ServerConfig
	mu     sync.Mutex
}

// serveSSH lets the suite into the nodes, until ctx ends, with the key whose path it returns.
func serveSSH(ctx context.Context, nodes []local.Node, dir string) (string, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return "", err
	}
	allowed, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return "", err
	}
	key := filepath.Join(dir, "ssh-key")
	if err := os.WriteFile(key, pem.EncodeToMemory(block), 0o600); err != nil {
		return "", err
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(k.Marshal(), allowed.Marshal()) {
			return nil, errors.New("not the key")
		}
		return nil, nil
	}}
	config.AddHostKey(signer) // the suite ignores the key
	for _, n := range nodes {
		l, err := n.Listen(ctx, n.Address+":22")
		if err != nil {
			return "", fmt.Errorf("listen on %s: %w", n.Name, err)
		}
		context.AfterFunc(ctx, func() { l.Close() })
		d := &sshd{node: n, config: config}
		go d.serve(ctx, l)
	}
	return key, nil
}

func (d *sshd) serve(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go d.connection(ctx, c)
	}
}

// connection serves sessions of a client, which runs a command in each.
func (d *sshd) connection(ctx context.Context, c net.Conn) {
	defer c.Close()
	conn, channels, requests, err := ssh.NewServerConn(c, d.config)
	if err != nil {
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for n := range channels {
		if n.ChannelType() != "session" {
			n.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := n.Accept()
		if err != nil {
			return
		}
		go d.session(ctx, channel, requests)
	}
}

func (d *sshd) session(ctx context.Context, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		var exec struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil {
			r.Reply(false, nil)
			continue
		}
		r.Reply(true, nil)
		out, complaint, code := d.execute(ctx, exec.Command)
		channel.Write(out)
		channel.Stderr().Write(complaint)
		channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		return
	}
}

// execute runs a command line on the node. It is root's already, and so there is no sudo.
func (d *sshd) execute(ctx context.Context, line string) (out, complaint []byte, code int) {
	switch command, args, _ := strings.Cut(line, " "); command {
	case "sudo":
		return nil, []byte("sudo: command not found\n"), 127
	case "systemctl":
		out, err := d.systemctl(args)
		if err != nil {
			return nil, []byte(err.Error() + "\n"), 1
		}
		return []byte(out), nil, 0
	}
	cmd, err := d.node.Command(ctx, "bash", "-c", line)
	if err != nil {
		return nil, []byte(err.Error() + "\n"), 255
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return stdout.Bytes(), stderr.Bytes(), exit.ExitCode()
	}
	if err != nil {
		return stdout.Bytes(), append(stderr.Bytes(), err.Error()...), 255
	}
	return stdout.Bytes(), stderr.Bytes(), 0
}

// systemctl implements the commands of the suite.
func (d *sshd) systemctl(args string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held, err := d.node.Held("kubelet") // by an earlier run, too, that was killed
	if err != nil {
		return "", err
	}
	switch args {
	case "stop kubelet":
		if held {
			return "", nil
		}
		return "", d.node.Hold("kubelet")
	case "start kubelet":
		if !held {
			return "", nil
		}
		return "", d.node.Release("kubelet")
	case "show kubelet --property ActiveState --value":
		if held {
			return "inactive\n", nil
		}
		return "active\n", nil
	}
	return "", fmt.Errorf("systemctl here does not know %q", args)
}
