package smbtest

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/internal/namespace"
)

// list lists a share with smbclient, or returns its output as an error.
func list(t *testing.T, s *Server, share, password string) string {
	t.Helper()
	namespace.Need(t, "smbclient")
	cmd := exec.Command("smbclient", "-s", "/dev/null", "-p", strconv.Itoa(s.Port), "-U", s.User+"%"+password,
		"//127.0.0.1/"+share, "-c", "ls", "-t", "5")
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// TestAServerOutlivesTheThreadOfItsStart: a thread that enters another network ends with its
// goroutine.
func TestAServerOutlivesTheThreadOfItsStart(t *testing.T) {
	if !Installed() {
		namespace.Skip(t, "samba is not installed")
	}
	dir := t.TempDir()
	var s *Server
	var err error
	mortal := exec.Command("sleep", "infinity") // ends with the thread
	mortal.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	onThreadThatEnds(func() {
		if err = mortal.Start(); err == nil {
			s, err = Start(dir)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mortal.Wait()
	if out := list(t, s, Share, s.Password); !strings.Contains(out, "blocks available") {
		t.Errorf("after the end of the thread: %s", out)
	}
	select {
	case <-s.ended:
		t.Error("the server has ended with the thread")
	default:
	}
}

// onThreadThatEnds calls f on a thread that ends then. The main thread of a program never does.
func onThreadThatEnds(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			defer runtime.UnlockOSThread()
			onThreadThatEnds(f)
			return
		}
		f()
	}()
	<-done
}

func TestAServer(t *testing.T) {
	s := Serve(t)
	first := s.Password
	if out := list(t, s, Share, first); !strings.Contains(out, "blocks available") {
		t.Fatalf("list: %s", out)
	}
	if out := list(t, s, Share, "wrong"); !strings.Contains(out, "NT_STATUS_LOGON_FAILURE") {
		t.Errorf("a wrong password: %s", out)
	}
	if out := list(t, s, Denied, first); !strings.Contains(out, "NT_STATUS_ACCESS_DENIED") {
		t.Errorf("a share of another user: %s", out)
	}
	control := httptest.NewServer(s.Handler())
	defer control.Close()
	t.Setenv(EnvRemote, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))+" "+control.URL)
	r := FromEnvironment()
	for _, step := range [][2]string{{"password", "ne,xt"}, {"mkdir/" + Share + "/a/b", ""}, {"remove/" + Share + "/a", ""},
		{"silence", ""}, {"resume", ""}, {"kill", ""}, {"restart", ""}} {
		if err := r.Do(step[0], step[1]); err != nil {
			t.Fatal(err)
		}
	}
	if out := list(t, s, Share, first); !strings.Contains(out, "NT_STATUS_LOGON_FAILURE") {
		t.Errorf("the old password: %s", out)
	}
	if out := list(t, s, Share, "ne,xt"); !strings.Contains(out, "blocks available") {
		t.Errorf("the new password: %s", out)
	}
	if err := s.Silence(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialTimeout("tcp", r.Address, 5*time.Second) // the kernel accepts for a silent server
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// TestASettingThatSmbdRefuses: the error has the words of smbd, and no process is left.
func TestASettingThatSmbdRefuses(t *testing.T) {
	if !Installed() {
		namespace.Skip(t, "samba is not installed")
	}
	s, err := prepare(t.TempDir(), loopback, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile(s.conf, []byte("[global]\nlock directory = /dev/null/none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(); err == nil || !strings.Contains(err.Error(), "smbd has ended: ") ||
		!strings.Contains(err.Error(), "/dev/null/none") {
		t.Fatalf("Restart: %v", err)
	}
	if !s.hasEnded() {
		t.Error("smbd runs after the error")
	}
}

func TestAServerThatWasNeverStartedHasNoProcess(t *testing.T) {
	var s Server
	for name, do := range map[string]func() error{"Silence": s.Silence, "Resume": s.Resume, "Kill": s.Kill} {
		if err := do(); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: %v, want ESRCH", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoClientGetsThePortOfAServer: a client that got the port of a killed server would prevent its
// restart.
func TestNoClientGetsThePortOfAServer(t *testing.T) {
	low, high, err := clientPorts()
	if err != nil {
		t.Fatal(err)
	}
	if low <= lowest && high == 1<<16-1 {
		t.Skip("clients have all ports")
	}
	for range 10 {
		port, err := freePort(loopback)
		if err != nil {
			t.Fatal(err)
		}
		if port < lowest || port >= low && port <= high {
			t.Errorf("port %d is below %d or a port of clients, from %d to %d", port, lowest, low, high)
		}
	}
}

func TestPortsOfServers(t *testing.T) {
	for name, c := range map[string]struct{ low, high, first, last, count int }{
		"Linux's range":             {32768, 60999, 10000, 65535, 22768 + 4536},
		"all ports above the first": {10001, 65535, 10000, 10000, 1},
		"clients have all ports":    {1024, 65535, 10000, 65535, 55536},
	} {
		ports := serverPorts(c.low, c.high)
		if ports[0] != c.first || ports[len(ports)-1] != c.last || len(ports) != c.count {
			t.Errorf("%s: %d ports from %d to %d, want %d from %d to %d", name, len(ports), ports[0],
				ports[len(ports)-1], c.count, c.first, c.last)
		}
	}
}

func TestSessions(t *testing.T) {
	s := Serve(t)
	sessions := func(want int) {
		t.Helper()
		if n, err := s.Sessions(); n != want || err != nil {
			t.Errorf("%d sessions, want %d: %v", n, want, err)
		}
	}
	sessions(0)
	var last *smb2.Session
	for range 3 {
		d := smb2.Dialer{Initiator: &smb2.NTLMInitiator{User: s.User, Password: s.Password}}
		session, err := d.Dial(context.Background(), net.JoinHostPort(s.Address, strconv.Itoa(s.Port)))
		if err != nil {
			t.Fatal(err)
		}
		last = session
	}
	sessions(3)
	if err := last.Logoff(); err != nil {
		t.Fatal(err)
	}
	sessions(2)
}
