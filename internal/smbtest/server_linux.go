package smbtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/internal/namespace"
)

// Shares of a Server. Each is a directory of this name in Server.Dir.
const (
	Share     = "share"     // for reading and writing
	Encrypted = "encrypted" // rejects connections without encryption
	ReadOnly  = "readonly"
	Denied    = "denied" // not for Server.User

	// CaseSensitive is for reading and writing, as shares for clients of Linux are.
	CaseSensitive = "casesensitive"
	// Unmangled is for reading and writing, and lists each file under its own name.
	Unmangled = "unmangled"
)

// The login of a Server at its start.
const firstUser, firstPassword = "alice", "pa,ss w"

// Server is an SMB server at an address of this machine.
type Server struct {
	Dir      string // holds the shares
	Address  string // without the port
	Port     int
	User     string
	Password string

	conf  string
	realm *Realm // nil: without Kerberos
	mu    sync.Mutex
	cmd   *exec.Cmd     // nil until the first start
	out   *bytes.Buffer // the output of cmd; complete when ended is closed
	ended chan struct{}
}

// Source returns the source of volumes in the directory Share, as in the parameter "source".
func (s *Server) Source() string { return fmt.Sprintf("//%s:%d/%s", s.Address, s.Port, Share) }

// Installed reports whether the programs of a Server are installed: Debian's package samba.
func Installed() bool {
	_, smbd := find("smbd")
	_, pdbedit := find("pdbedit")
	return smbd == nil && pdbedit == nil
}

// Serve starts a Server for a test, and ends it with the test. A test is skipped where samba is not
// installed, and fails where it must be: see namespace.Skip.
func Serve(t testing.TB) *Server {
	t.Helper()
	if !Installed() {
		namespace.Skip(t, errors.New("samba is not installed"))
	}
	s, err := Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// find returns the path of a program, also in the directories of root's programs.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return exec.LookPath(filepath.Join("/usr/sbin", program))
}

// loopback is the address of most servers.
const loopback = "127.0.0.1"

// Start starts a Server at the loopback address, whose files are in dir, an empty directory. Close
// ends it; so does the end of this process.
func Start(dir string) (*Server, error) { return start(dir, loopback, nil) }

// StartAt is Start for another IPv4 address of this machine.
func StartAt(dir, address string) (*Server, error) { return start(dir, address, nil) }

// start starts a Server that also accepts tickets of a realm, unless the realm is nil.
func start(dir, address string, realm *Realm) (*Server, error) {
	s, err := prepare(dir, address, realm)
	if err != nil {
		return nil, err
	}
	if err := s.Restart(); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare returns a Server that was never started, with its files in dir.
func prepare(dir, address string, realm *Realm) (*Server, error) {
	s := &Server{Dir: filepath.Join(dir, "shares"), Address: address, User: firstUser, Password: firstPassword,
		conf: filepath.Join(dir, "smb.conf"), realm: realm}
	unix, err := unixUser()
	if err != nil {
		return nil, err
	}
	if s.Port, err = freePort(address); err != nil {
		return nil, err
	}
	for _, name := range []string{"private", "lock", "state", "cache", "pid", "ncalrpc", "log", "shares"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{Share, Encrypted, ReadOnly, Denied, CaseSensitive, Unmangled} {
		path := filepath.Join(s.Dir, name)
		if err := errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777)); err != nil {
			return nil, err
		}
	}
	// smbd resolves the paths of its shares as another user.
	for path := dir; path != filepath.Dir(os.TempDir()) && path != "/"; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil && info.Mode()&0o001 == 0 {
			if err := os.Chmod(path, info.Mode()|0o055); err != nil {
				return nil, err
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "users"), []byte(unix+" = "+s.User+"\n"), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.conf, []byte(s.configuration(dir, unix)), 0o644); err != nil {
		return nil, err
	}
	if err := s.pdbedit(unix, "-a"); err != nil {
		return nil, err
	}
	return s, nil
}

// unixUser returns the name of the user that owns the files of smbd.
func unixUser() (string, error) {
	if os.Geteuid() == 0 {
		return "daemon", nil
	}
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	return u.Username, nil
}

func (s *Server) configuration(dir, unix string) string {
	var c strings.Builder
	fmt.Fprintf(&c, `[global]
server role = standalone server
smb ports = %d
bind interfaces only = yes
interfaces = %[3]s
disable netbios = yes
server min protocol = SMB3_00
server signing = auto
passdb backend = tdbsam:%[2]s/private/passdb.tdb
private dir = %[2]s/private
lock directory = %[2]s/lock
state directory = %[2]s/state
cache directory = %[2]s/cache
pid directory = %[2]s/pid
ncalrpc dir = %[2]s/ncalrpc
log file = %[2]s/log/smbd
username map = %[2]s/users
load printers = no
disable spoolss = yes
usershare path =
follow symlinks = no
`, s.Port, dir, s.Address)
	if s.realm != nil {
		fmt.Fprintf(&c, `realm = %s
kerberos method = dedicated keytab
dedicated keytab file = FILE:%s
gensec:require_pac = no
`, realmName, s.realm.keytab)
	}
	for name, more := range map[string]string{
		// A test writes files of its own user into the share, as pods with other clients do.
		Share:         "read only = no\nadmin users = " + unix,
		Encrypted:     "read only = no\nsmb encrypt = required",
		ReadOnly:      "read only = yes",
		Denied:        "read only = no\nvalid users = nobody",
		CaseSensitive: "read only = no\ncase sensitive = yes\nadmin users = " + unix,
		Unmangled:     "read only = no\nmangled names = no\nadmin users = " + unix,
	} {
		fmt.Fprintf(&c, "[%s]\npath = %s\n%s\n", name, filepath.Join(s.Dir, name), more)
	}
	return c.String()
}

// pdbedit writes the password of a user to smbd's database.
func (s *Server) pdbedit(unix string, flags ...string) error {
	path, err := find("pdbedit")
	if err != nil {
		return err
	}
	cmd := exec.Command(path, append([]string{"-s", s.conf, "-t", "-u", unix}, flags...)...)
	cmd.Stdin = strings.NewReader(s.Password + "\n" + s.Password + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pdbedit: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// SetPassword changes the password for new sessions.
func (s *Server) SetPassword(password string) error {
	unix, err := unixUser()
	if err != nil {
		return err
	}
	path, err := find("smbpasswd")
	if err != nil {
		return err
	}
	s.Password = password
	cmd := exec.Command(path, "-c", s.conf, "-s", "-a", unix)
	cmd.Stdin = strings.NewReader(password + "\n" + password + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("smbpasswd: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// Restart starts the server, which must not run, and waits until it accepts connections. After an
// error the server does not run.
func (s *Server) Restart() error {
	err := s.launch()
	if err == nil {
		err = s.await()
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// launch starts smbd.
func (s *Server) launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, err := find("smbd")
	if err != nil {
		return err
	}
	// smbd ends with its standard input, and takes its process group with it.
	cmd := exec.Command(path, "-F", "--no-process-group", "--debug-stdout", "-s", s.conf, "-l",
		filepath.Join(filepath.Dir(s.conf), "log"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if s.realm != nil {
		cmd.Env = append(os.Environ(), "KRB5_CONFIG="+s.realm.Conf)
	}
	if _, err := cmd.StdinPipe(); err != nil { // open until Wait
		return err
	}
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // smbd ends with this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // reports the signal of Kill
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	s.cmd, s.out, s.ended = cmd, out, ended
	return nil
}

// await waits until the server accepts a session. smbd accepts connections shortly before it can
// serve them, so each attempt has a limit; on a slow machine a later attempt has enough time.
func (s *Server) await() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := net.JoinHostPort(s.Address, strconv.Itoa(s.Port))
	var err error
	for limit := 5 * time.Second; limit <= time.Minute; limit += 5 * time.Second {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err = s.logIn(ctx, address)
		for err != nil && ctx.Err() == nil && !s.hasEnded() { // the port is still closed
			time.Sleep(10 * time.Millisecond)
			err = s.logIn(ctx, address)
		}
		cancel()
		if err == nil {
			return nil
		}
		if s.hasEnded() {
			return fmt.Errorf("smbd has ended: %s", s.out.Bytes())
		}
	}
	return fmt.Errorf("smbd does not answer: %w", err)
}

func (s *Server) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// logIn opens a session with a share, and ends it.
func (s *Server) logIn(ctx context.Context, address string) error {
	d := smb2.Dialer{Initiator: &smb2.NTLMInitiator{User: s.User, Password: s.Password}}
	session, err := d.Dial(ctx, address)
	if err != nil {
		return err
	}
	session = session.WithContext(ctx)
	_, err = session.Mount(Share)
	return errors.Join(err, session.Logoff())
}

// Sessions returns the number of sessions that the server has. It needs Samba 4.17, whose smbstatus
// prints JSON.
func (s *Server) Sessions() (int, error) {
	path, err := find("smbstatus")
	if err != nil {
		return 0, err
	}
	out, err := exec.Command(path, "-s", s.conf, "--processes", "--json").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("smbstatus: %w: %s", err, bytes.TrimSpace(out))
	}
	var status struct {
		Sessions map[string]any `json:"sessions"` // by their IDs
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return 0, fmt.Errorf("smbstatus: %w: %s", err, bytes.TrimSpace(out))
	}
	return len(status.Sessions), nil
}

// Silence stops the server: connections stay open, and nothing answers.
func (s *Server) Silence() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a silent server answer.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

// Kill ends the server and its connections at once.
func (s *Server) Kill() error {
	if err := s.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-s.ended
	return nil
}

// signal sends a signal to all processes of the server. Error: syscall.ESRCH if there are none.
func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return syscall.ESRCH
	}
	return syscall.Kill(-s.cmd.Process.Pid, sig)
}

// Close ends the server, silent or not, if it runs.
func (s *Server) Close() error {
	if err := s.Kill(); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
