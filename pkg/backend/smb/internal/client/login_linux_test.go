package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	smb2 "github.com/cloudsoda/go-smb2"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// TestAUserThatIsMappedToGuest fails without the guard: the server answers a wrong password with
// success, and the library does not sign or verify the messages of the session.
func TestAUserThatIsMappedToGuest(t *testing.T) {
	b := serve(t)
	conf, err := os.OpenFile(filepath.Join(b.Dir, "..", "smb.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conf.WriteString("[global]\nmap to guest = bad password\n[" + smbtest.Share + "]\nguest ok = yes\n")
	if err := errors.Join(err, conf.Close(), b.Kill(), b.Restart()); err != nil {
		t.Fatal(err)
	}
	b.open(smbtest.Share)
	guest, err := b.pool.Open(context.Background(), b.source(smbtest.Share), Login{Guest: true}, Calls)
	if err != nil {
		t.Fatalf("the server has no guests: %v", err)
	}
	guest.Release()
	for name, login := range map[string]Login{
		"wrong password": {User: b.User, Password: "wrong"},
		"unknown user":   {User: "nobody-of-this-name", Password: b.Password},
	} {
		_, err := b.pool.Open(context.Background(), b.source(smbtest.Share), login, Calls)
		if !errors.Is(err, backend.ErrUnauthenticated) || !strings.Contains(err.Error(), "guest") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsOfLogIns(t *testing.T) {
	guest := &smb2.InvalidResponseError{Message: "guest account doesn't support signing"}
	other := &smb2.InvalidResponseError{Message: "broken negotiate response format"}
	for name, row := range map[string]struct {
		login Login
		err   error
		want  error
	}{
		"a user mapped to guest":      {Login{User: "alice"}, guest, errGuest},
		"a principal mapped to guest": {Login{Realm: "EXAMPLE.TEST"}, guest, errGuest},
		"a damaged answer":            {Login{User: "alice"}, other, other},
		"a refused ticket":            {Login{Realm: "EXAMPLE.TEST"}, other, backend.ErrUnauthenticated},
	} {
		err := row.login.convert(row.err)
		if !errors.Is(err, row.want) || errors.Is(row.want, other) == errors.Is(err, backend.ErrUnauthenticated) {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
	}
}

// TestANameWhoseUpperCaseDiffers: the library has the upper case of Unicode, and a server can have
// other rules for a letter that does not come back in lower case.
func TestANameWhoseUpperCaseDiffers(t *testing.T) {
	refused := &smb2.ResponseError{Code: statusLogonFailure}
	for user, want := range map[string]bool{"alice": false, "Ärger-ß": false, "kıvanç": true, "straſe": true} {
		err := Login{User: user}.convert(refused)
		if !errors.Is(err, refused) || strings.Contains(err.Error(), "use a name without it") != want {
			t.Errorf("%s: %v, want a remedy: %t", user, err, want)
		}
	}
	if err := (Login{User: "kıvanç", Realm: "EXAMPLE.TEST"}).convert(refused); strings.Contains(err.Error(), "upper case") {
		t.Errorf("by Kerberos: %v", err)
	}
}
