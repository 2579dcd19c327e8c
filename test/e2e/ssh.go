package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/sshserver"
)

// sshd is the SSH server that the suite expects on nodes: disruptive specs stop the kubelet and
// list mounts through it. A local cluster's nodes have no such server, and no systemd: this is the
// part of both that the suite needs.
type sshd struct {
	node local.Node
	mu   sync.Mutex
}

// serveSSH lets the suite into the nodes, until ctx ends, with the key whose path it returns.
func serveSSH(ctx context.Context, nodes []local.Node, dir string) (string, error) {
	private, _, err := sshserver.NewKey()
	if err != nil {
		return "", err
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return "", err
	}
	key := filepath.Join(dir, "ssh-key")
	if err := os.WriteFile(key, private, 0o600); err != nil {
		return "", err
	}
	for _, n := range nodes {
		l, err := n.Listen(ctx, n.Address+":22")
		if err != nil {
			return "", fmt.Errorf("listen on %s: %w", n.Name, err)
		}
		context.AfterFunc(ctx, func() { l.Close() })
		d := &sshd{node: n}
		// The suite ignores the host's key.
		server := sshserver.Server{Host: signer, Client: signer.PublicKey(), Run: func(s sshserver.Session) int {
			out, complaint, code := d.execute(ctx, s.Command)
			s.Write(out)
			s.Stderr().Write(complaint)
			return code
		}}
		go server.Serve(l) // until l is closed
	}
	return key, nil
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
