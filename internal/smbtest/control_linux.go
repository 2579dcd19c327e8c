package smbtest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// EnvRemote is the environment variable with the control of a server outside of a guest: the
// address and the port of the server, and the URL of its control, separated by a space.
const EnvRemote = "CAUSEWAY_TEST_SMB"

// Handler returns the control of the server, for Remote.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for name, do := range map[string]func() error{
		"silence": s.Silence, "resume": s.Resume, "kill": s.Kill, "restart": s.Restart,
	} {
		mux.HandleFunc("POST /"+name, func(w http.ResponseWriter, _ *http.Request) { answer(w, do()) })
	}
	mux.HandleFunc("POST /password", func(w http.ResponseWriter, r *http.Request) {
		password, err := io.ReadAll(io.LimitReader(r.Body, 1<<10))
		if err == nil {
			err = s.SetPassword(string(password))
		}
		answer(w, err)
	})
	mux.HandleFunc("POST /remove/{path...}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.Remove(r.PathValue("path")))
	})
	mux.HandleFunc("POST /mkdir/{path...}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.Mkdir(r.PathValue("path")))
	})
	return mux
}

// Mkdir makes a directory and its parents, all for every user, on the disk of the server. path
// begins with the name of a share.
func (s *Server) Mkdir(path string) error {
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(path, 0o777); err != nil {
		return err
	}
	for ; path != "."; path = filepath.Dir(path) {
		if err := root.Chmod(path, 0o777); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes a file or a directory with its content on the disk of the server.
func (s *Server) Remove(path string) error {
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	return errors.Join(root.RemoveAll(path), root.Close())
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// Remote is a server outside of this machine.
type Remote struct {
	Address  string // host:port
	User     string
	Password string
	url      string
}

// FromEnvironment returns the server that EnvRemote names, or nil.
func FromEnvironment() *Remote {
	address, url, ok := strings.Cut(os.Getenv(EnvRemote), " ")
	if !ok {
		return nil
	}
	return &Remote{Address: address, User: firstUser, Password: firstPassword, url: url}
}

// Do makes the server do something: silence, resume, kill, restart, password, and mkdir or remove
// with a path below a share.
func (r *Remote) Do(action string, body string) error {
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Post(r.url+"/"+action, "text/plain", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s: %s", action, resp.Status, text)
	}
	return nil
}
