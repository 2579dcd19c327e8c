package sshserver

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// key returns a new key.
func key(t *testing.T) (ssh.Signer, ssh.PublicKey) {
	t.Helper()
	private, public, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	parsed, _, _, _, err := ssh.ParseAuthorizedKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return signer, parsed
}

// serve starts a server, and returns a function that connects to it with a key. The server prints
// its input and the command, and ends with 7.
func serve(t *testing.T, client ssh.PublicKey, global func(*ssh.ServerConn, <-chan *ssh.Request)) (
	connect func(ssh.Signer) (*ssh.Client, error)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, public := key(t)
	ended := make(chan error, 1)
	go func() {
		ended <- Server{Host: host, Client: client, Global: global, Run: func(s Session) int {
			input, err := io.ReadAll(s)
			if err != nil {
				t.Error(err)
			}
			io.WriteString(s, s.Command+" "+string(input))
			io.WriteString(s.Stderr(), "complaint")
			return 7
		}}.Serve(l)
	}()
	t.Cleanup(func() {
		l.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return func(k ssh.Signer) (*ssh.Client, error) {
		return ssh.Dial("tcp", l.Addr().String(), &ssh.ClientConfig{User: "root",
			Auth: []ssh.AuthMethod{ssh.PublicKeys(k)}, HostKeyCallback: ssh.FixedHostKey(public)})
	}
}

func TestCommand(t *testing.T) {
	signer, public := key(t)
	client, err := serve(t, public, nil)(signer)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 { // sessions of one connection
		s, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RequestPty("xterm", 24, 80, nil); err == nil {
			t.Error("the server has no terminals, but allowed one")
		}
		var out, complaint strings.Builder
		s.Stdin, s.Stdout, s.Stderr = strings.NewReader("the input"), &out, &complaint
		err = s.Run("the command")
		if exit := (*ssh.ExitError)(nil); !errors.As(err, &exit) || exit.ExitStatus() != 7 {
			t.Errorf("got %v, want the exit code 7", err)
		}
		if out.String() != "the command the input" || complaint.String() != "complaint" {
			t.Errorf("got %q and %q", &out, &complaint)
		}
	}
	if _, err := client.Dial("tcp", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "invalid channel") {
		t.Errorf("a channel that is no session: %v", err)
	}
	if ok, _, err := client.SendRequest("anything", true, nil); ok || err != nil {
		t.Errorf("a request for the connection: %t, %v, want it refused", ok, err)
	}
}

func TestUnknownKey(t *testing.T) {
	_, public := key(t)
	other, _ := key(t)
	client, err := serve(t, public, nil)(other)
	if err == nil {
		client.Close()
		t.Fatal("the server accepted an unknown key")
	}
	if !strings.Contains(err.Error(), "unable to authenticate") {
		t.Errorf("unknown key: %v", err)
	}
}

func TestGlobalRequests(t *testing.T) {
	signer, public := key(t)
	client, err := serve(t, public, func(_ *ssh.ServerConn, requests <-chan *ssh.Request) {
		for r := range requests {
			r.Reply(r.Type == "mine", r.Payload)
		}
	})(signer)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, want := range map[string]bool{"mine": true, "other": false} {
		if ok, answer, err := client.SendRequest(name, true, []byte("payload")); ok != want || string(answer) != "payload" ||
			err != nil {
			t.Errorf("%s: %t, %q, %v", name, ok, answer, err)
		}
	}
}
