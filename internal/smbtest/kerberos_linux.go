package smbtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/namespace"
)

// realmName is the name of the realm of a private KDC.
const realmName = "EXAMPLE.TEST"

// Realm is a Kerberos realm with a private KDC, MIT's krb5kdc, at a port of the loopback address.
// Its only service is the Server at the name localhost.
type Realm struct {
	Name     string
	Conf     string // path of krb5.conf
	User     string // principal without the realm, which the Server accepts
	Password string

	dir     string
	address string // of the KDC
	keytab  string
	env     []string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
}

// ServeKerberos starts a Server and the KDC of its realm for a test, and ends them with the test.
// Source of the configuration: kdc.conf(5), krb5.conf(5).
func ServeKerberos(t testing.TB) (*Server, *Realm) {
	t.Helper()
	_, kdc := find("krb5kdc")
	_, admin := find("kadmin.local")
	_, kinit := find("kinit")
	if err := errors.Join(kdc, admin, kinit); err != nil || !Installed() {
		namespace.Skip(t, errors.Join(errors.New("not installed: samba or Kerberos"), err))
	}
	r, err := startRealm(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	s, err := start(t.TempDir(), loopback, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, r
}

func startRealm(dir string) (*Realm, error) {
	unix, err := unixUser()
	if err != nil {
		return nil, err
	}
	port, err := freePort(loopback)
	if err != nil {
		return nil, err
	}
	r := &Realm{Name: realmName, Conf: filepath.Join(dir, "krb5.conf"), User: unix, Password: "se,cret", dir: dir,
		address: net.JoinHostPort(loopback, strconv.Itoa(port)), keytab: filepath.Join(dir, "keytab")}
	profile := filepath.Join(dir, "kdc.conf")
	r.env = append(os.Environ(), "KRB5_CONFIG="+r.Conf, "KRB5_KDC_PROFILE="+profile)
	for path, content := range map[string]string{
		r.Conf: fmt.Sprintf("[libdefaults]\ndefault_realm = %[1]s\ndns_lookup_kdc = false\n"+
			"dns_lookup_realm = false\nrdns = false\nudp_preference_limit = 1\n"+
			"[realms]\n%[1]s = {\n kdc = %[2]s\n}\n[domain_realm]\nlocalhost = %[1]s\n", realmName, r.address),
		profile: fmt.Sprintf("[kdcdefaults]\nkdc_listen = %[1]s\nkdc_tcp_listen = %[1]s\n[realms]\n%[2]s = {\n"+
			" database_name = %[3]s/principal\n key_stash_file = %[3]s/stash\n acl_file = %[3]s/acl\n"+
			" disable_pac = true\n}\n[logging]\n kdc = FILE:%[3]s/kdc.log\n", r.address, realmName, dir),
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	for _, args := range [][]string{
		{"kdb5_util", "create", "-s", "-r", realmName, "-P", "master"},
		{"kadmin.local", "-r", realmName, "-q", fmt.Sprintf("addprinc -pw %s %s", r.Password, r.User)},
		{"kadmin.local", "-r", realmName, "-q", "addprinc -pw " + r.Password + " stranger"},
		{"kadmin.local", "-r", realmName, "-q", "addprinc -randkey cifs/localhost"},
		{"kadmin.local", "-r", realmName, "-q", "ktadd -k " + r.keytab + " cifs/localhost"},
	} {
		if err := r.run("", args...); err != nil {
			return nil, err
		}
	}
	return r, r.Start()
}

// run runs a program of the realm.
func (r *Realm) run(input string, args ...string) error {
	path, err := find(args[0])
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Env, cmd.Stdin = r.env, strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Start starts the KDC, which must not run, and waits until it accepts connections.
func (r *Realm) Start() error {
	path, err := find("krb5kdc")
	if err != nil {
		return err
	}
	r.cmd = exec.Command(path, "-n", "-r", realmName, "-P", filepath.Join(r.dir, "pid"))
	r.cmd.Env, r.cmd.SysProcAttr = r.env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := r.cmd, make(chan struct{})
	r.ended = ended
	go func() {
		cmd.Wait() // reports the signal of Kill
		close(ended)
	}()
	for start := time.Now(); ; {
		conn, err := net.Dial("tcp", r.address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("krb5kdc has ended: %s", cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(start) > 5*time.Minute {
			r.Kill()
			return fmt.Errorf("krb5kdc does not answer: %w", err)
		}
	}
}

// Silence stops the KDC: connections stay open, and nothing answers.
func (r *Realm) Silence() error { return r.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a silent KDC answer.
func (r *Realm) Resume() error { return r.cmd.Process.Signal(syscall.SIGCONT) }

// Kill ends the KDC.
func (r *Realm) Kill() {
	r.cmd.Process.Kill()
	<-r.ended
}

// Tickets returns the credential cache of a principal with a lifetime in seconds.
func (r *Realm) Tickets(principal string, lifetime int) ([]byte, error) {
	file := filepath.Join(r.dir, "krb5cc")
	err := r.run(r.Password+"\n", "kinit", "-c", "FILE:"+file, "-l", strconv.Itoa(lifetime)+"s", principal)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}
