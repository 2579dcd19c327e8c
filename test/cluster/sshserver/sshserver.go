// Package sshserver is an SSH server that runs commands for the holder of one key. RFC 4254.
package sshserver

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"

	"golang.org/x/crypto/ssh"
)

// NewKey returns a new Ed25519 key: the private part as PEM in the format of OpenSSH, and the
// public part as a line of an authorized_keys file.
func NewKey() (private, public []byte, err error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		return nil, nil, err
	}
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(key), nil
}

// Session is a session with a command.
type Session struct {
	Command string
	// Channel has the standard streams of the command.
	ssh.Channel
	// Requests has the further requests of the client. It is closed at the end of the connection.
	Requests <-chan *ssh.Request
}

// Server is the configuration of a server.
type Server struct {
	Host   ssh.Signer    // its own key
	Client ssh.PublicKey // the key of its clients
	// Run runs the command of a session, and returns its exit code. Sessions run at the same time.
	Run func(Session) (code int)
	// Global serves the requests of a connection that belong to no session. nil refuses them.
	Global func(*ssh.ServerConn, <-chan *ssh.Request)
}

// Serve serves the connections of a listener. Errors: that of Accept, such as net.ErrClosed.
func (s Server) Serve(l net.Listener) error {
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(k.Marshal(), s.Client.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	config.AddHostKey(s.Host)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go s.serve(conn, config)
	}
}

// serve serves the sessions of a connection.
func (s Server) serve(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	c, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer c.Close()
	if s.Global != nil {
		go s.Global(c, requests)
	} else {
		go ssh.DiscardRequests(requests)
	}
	for n := range channels {
		if n.ChannelType() != "session" {
			n.Reject(ssh.UnknownChannelType, "invalid channel: must be a session")
			continue
		}
		channel, requests, err := n.Accept()
		if err != nil {
			return
		}
		go s.session(channel, requests)
	}
}

// session runs the command of a session. Other requests than that, such as for a terminal, are
// refused.
func (s Server) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		var exec struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil {
			r.Reply(false, nil)
			continue
		}
		r.Reply(true, nil)
		code := s.Run(Session{exec.Command, channel, requests})
		channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		return
	}
}
