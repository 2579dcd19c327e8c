package smb

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
)

// TestKerberos: the controller logs in by Kerberos with the files of a share and with the secrets
// of a call. A login that fails has the class of its cause.
func TestKerberos(t *testing.T) {
	server, realm := smbtest.ServeKerberos(t)
	w := newWorld(t, server, smbtest.Share)
	w.address, w.krb5Conf = fmt.Sprint("localhost:", server.Port), realm.Conf // the name of the service
	tickets := func(principal string, lifetime int) string {
		t.Helper()
		file, err := realm.Tickets(principal, lifetime)
		if err != nil {
			t.Fatal(err)
		}
		return string(file)
	}
	valid := tickets(realm.User, 3600)
	encode := func(file string) string { return base64.StdEncoding.EncodeToString([]byte(file)) }
	password := map[string]string{userKey: realm.User, passwordKey: realm.Password, realmKey: realm.Name}
	id := ""
	use := func(b *Backend, secrets map[string]string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		o := w.request("pvc-1")
		o.Secrets = secrets
		v, err := b.Create(ctx, o)
		if err != nil {
			return err
		}
		id = v.ID
		return b.Delete(ctx, v.ID, secrets)
	}
	for name, files := range map[string]map[string]string{
		"password": password, "tickets": {ccacheKey: valid, userKey: realm.User},
	} {
		w.shares = w.file("shares.yaml", fmt.Sprintf("shares:\n- {source: %q, credentials: %q}\n", w.source(),
			w.credentialFiles(files)))
		if err := use(w.open(), nil); err != nil {
			t.Errorf("files with a %s: %v", name, err)
		}
	}
	b := w.open()
	w.shares = ""
	node := w.open() // has no shares
	for name, tc := range map[string]struct {
		secrets map[string]string
		want    error
	}{
		"a password": {password, nil},
		"tickets":    {map[string]string{ccacheKey: encode(valid), userKey: realm.User}, nil},
		"a wrong password": {map[string]string{userKey: realm.User, passwordKey: "no", realmKey: realm.Name},
			backend.ErrUnauthenticated},
		"an unknown user": {map[string]string{userKey: "nobody", passwordKey: "no", realmKey: realm.Name},
			backend.ErrUnauthenticated},
		"a user whom the server does not know": {map[string]string{userKey: "stranger", passwordKey: realm.Password,
			realmKey: realm.Name}, backend.ErrUnauthenticated},
		"tickets without base64": {map[string]string{ccacheKey: valid}, backend.ErrUnauthenticated},
		"damaged tickets":        {map[string]string{ccacheKey: encode(valid[:len(valid)/2])}, backend.ErrUnauthenticated},
		"expired tickets": {map[string]string{ccacheKey: encode(expired(t, tickets(realm.User, 1)))},
			backend.ErrUnauthenticated},
	} {
		if err := use(b, tc.secrets); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		_, err := node.Mount(context.Background(), id, backend.Access{Secrets: tc.secrets, Context: map[string]string{
			sourceKey: w.source(), subDirKey: ""}})
		if tc.want != nil && !errors.Is(err, tc.want) || tc.want == nil && !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s: Mount: %v, want %v", name, err, tc.want)
		}
	}
	m, err := node.Mount(context.Background(), "static", backend.Access{Secrets: password,
		Context: map[string]string{sourceKey: w.source()}})
	if err != nil || !slices.Contains(m.Options, kerberosOption) || m.Credentials.Username != realm.User ||
		m.Credentials.Password != "" {
		t.Errorf("Mount = %+v with the user %q, %v", m, m.Credentials.Username, err)
	}
	w.keepsTickets(realm, valid, tickets(realm.User, 7200), tickets("stranger", 3600))

	// The pool keeps sessions: another process needs a ticket.
	if err := realm.Silence(); err != nil {
		t.Fatal(err)
	}
	if err := use(w.open(), password); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("the KDC does not answer: %v", err)
	}
	if err := realm.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := use(b, password); err != nil { // an unused session is closed
		t.Fatal(err)
	}
	realm.Kill()
	if err := use(w.open(), password); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("there is no KDC: %v", err)
	}
	if err := use(b, password); err != nil {
		t.Errorf("there is no KDC, and a session is open: %v", err)
	}
	if err := realm.Start(); err != nil {
		t.Fatal(err)
	}
	if err := use(w.open(), password); err != nil {
		t.Errorf("the KDC is back: %v", err)
	}
}

// keepsTickets checks the files of tickets for the kernel.
func (w *world) keepsTickets(realm *smbtest.Realm, first, second, strangers string) {
	w.Helper()
	caches := w.TempDir()
	node, err := New(Config{Krb5Conf: realm.Conf, Krb5Caches: caches})
	if err != nil {
		w.Fatal(err)
	}
	defer node.Close()
	mount := func(tickets string) error {
		m, err := node.Mount(context.Background(), "static", backend.Access{
			Secrets: map[string]string{ccacheKey: base64.StdEncoding.EncodeToString([]byte(tickets))},
			Options: []string{"cruid=1000"}, Context: map[string]string{sourceKey: w.source()}})
		if err == nil && m.Credentials.Username != realm.User {
			w.Errorf("the mount has the user %q, want that of the tickets", m.Credentials.Username)
		}
		return err
	}
	for _, tickets := range []string{first, first, second} {
		if err := mount(tickets); err != nil {
			w.Fatal(err)
		}
		file := filepath.Join(caches, "krb5cc_1000")
		got, err := os.ReadFile(file)
		if err != nil || string(got) != tickets {
			w.Errorf("the file has other tickets, %v", err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode() != 0o600 || os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid != 1000 {
			w.Errorf("the file is %v, %v", info, err)
		}
	}
	other := client.Login{CCache: []byte(strangers)}
	if err := node.keepTickets(other, []string{"cruid=1000"}); !errors.Is(err, backend.ErrPrecondition) {
		w.Errorf("tickets of another principal for the same user: %v", err)
	}
	if err := node.keepTickets(other, nil); err != nil {
		w.Errorf("tickets of another principal for root: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(caches, "*"))
	if err != nil || len(names) != 2 {
		w.Errorf("the directory has %v, %v", names, err)
	}
}

// expired waits until tickets of a second have expired.
func expired(t *testing.T, file string) string {
	t.Helper()
	end := time.Now().Add(2 * time.Second)
	await.True(t, "the tickets have expired", func() bool { return time.Now().After(end) })
	return file
}
