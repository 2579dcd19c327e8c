package smbtest

import (
	"net"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// list lists a share with smbclient, or returns its output as an error.
func list(t *testing.T, s *Server, share, password string) string {
	t.Helper()
	client, err := exec.LookPath("smbclient")
	if err != nil {
		t.Skip("smbclient is not installed")
	}
	cmd := exec.Command(client, "-s", "/dev/null", "-p", strconv.Itoa(s.Port), "-U", s.User+"%"+password,
		"//127.0.0.1/"+share, "-c", "ls", "-t", "5")
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// TestAServerOutlivesTheThreadOfItsStart: a thread that enters another network ends with its goroutine.
func TestAServerOutlivesTheThreadOfItsStart(t *testing.T) {
	if !Installed() {
		t.Skip("samba is not installed")
	}
	dir := t.TempDir()
	var s *Server
	var err error
	onThreadThatEnds(func() { s, err = Start(dir) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	select {
	case <-s.ended:
		t.Error("the server has ended with the thread")
	case <-time.After(500 * time.Millisecond):
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
