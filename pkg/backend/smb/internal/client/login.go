package client

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	smb2 "github.com/cloudsoda/go-smb2"
	krb5 "github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/krberror"
	"golang.org/x/crypto/md4" //nolint:gosec,staticcheck // NTLM has no other hash

	"github.com/causeway-csi/causeway/pkg/backend"
)

// Login is how a client logs in to a server. It prints as *** in every format.
//   - With Guest, as the guest account, without a signature of messages.
//   - With CCache, by Kerberos with the tickets of this credential cache.
//   - With Realm, by Kerberos with User and Password.
//   - Otherwise by NTLM with User, Password and Domain.
type Login struct {
	Guest    bool
	User     string
	Domain   string
	Password string
	Realm    string // Kerberos realm
	CCache   []byte // content of a file, MIT format
	Krb5Conf string // path of krb5.conf, for Kerberos
}

// Format prints *** for every verb.
func (Login) Format(s fmt.State, _ rune) { io.WriteString(s, "***") }

// Kerberos reports whether l logs in by Kerberos.
func (l Login) Kerberos() bool { return len(l.CCache) > 0 || l.Realm != "" }

// initiator returns the side of the client in the authentication with a server, and a function
// that ends it.
func (l Login) initiator(ctx context.Context, server string) (i smb2.Initiator, end func(), err error) {
	switch {
	case l.Guest:
		return &smb2.NTLMInitiator{User: "guest"}, func() {}, nil
	case !l.Kerberos():
		return &smb2.NTLMInitiator{User: l.User, Hash: ntHash(l.Password), Domain: l.Domain}, func() {}, nil
	}
	kerberos, err := l.kerberos()
	if err != nil {
		return nil, nil, err
	}
	// The library takes no context. It waits some seconds for each server of the realm.
	service, result := "cifs/"+server, make(chan error, 1)
	go func() {
		_, _, err := kerberos.GetServiceTicket(service) // the client keeps the ticket
		result <- err
	}()
	select {
	case err = <-result:
	case <-ctx.Done():
		go func() {
			<-result
			kerberos.Destroy()
		}()
		return nil, nil, fmt.Errorf("%w: the servers of the Kerberos realm do not answer", backend.ErrUnavailable)
	}
	if err != nil {
		kerberos.Destroy()
		class := backend.ErrUnauthenticated
		var cause krberror.Krberror
		if errors.As(err, &cause) && cause.RootCause == krberror.NetworkingError {
			class = backend.ErrUnavailable
		}
		return nil, nil, fmt.Errorf("%w: no Kerberos ticket for %s: %w", class, service, err)
	}
	return &smb2.Krb5Initiator{Client: kerberos, TargetSPN: service}, kerberos.Destroy, nil
}

// ntHash returns the NT hash of a password, [MS-NLMP] 3.3.1: the library encodes a password as a
// path, in which it removes backslashes.
func ntHash(password string) []byte {
	hash := md4.New()
	for _, unit := range utf16.Encode([]rune(password)) {
		hash.Write([]byte{byte(unit), byte(unit >> 8)})
	}
	return hash.Sum(nil)
}

// oneWay reports whether the lower case of the upper case of a letter is another letter, as of the
// dotless i. A server can leave such a letter as it is; the library has the rules of Unicode.
func oneWay(letter rune) bool {
	upper := unicode.ToUpper(letter)
	return upper != letter && unicode.ToLower(upper) != letter
}

// errGuest reports a session without a key for signatures.
var errGuest = fmt.Errorf("%w: the server maps this user to its guest account, or its answer was forged: check the "+
	"user and the password", backend.ErrUnauthenticated)

// guestAnswers are the messages of the library for a user that the server maps to its guest account
// in its first answer.
var guestAnswers = map[string]bool{
	"guest account doesn't support signing":     true,
	"anonymous account doesn't support signing": true,
}

// convert returns err, an error of the library's log in, with backend.ErrUnauthenticated if the
// server refuses l without a status.
func (l Login) convert(err error) error {
	var invalid *smb2.InvalidResponseError
	switch {
	case isStatus(err, statusLogonFailure) && !l.Kerberos() && strings.ContainsFunc(l.User, oneWay):
		return fmt.Errorf("%w: NTLM compares names in upper case, and the rules of this client for a letter of the "+
			"user name can differ from those of the server: use a name without it, or Kerberos", err)
	case !errors.As(err, &invalid):
		return err
	case guestAnswers[invalid.Message]:
		return fmt.Errorf("%w: %w", errGuest, err)
	case l.Kerberos(): // the library drops the status of the first answer
		return fmt.Errorf("%w: %w", backend.ErrUnauthenticated, err)
	}
	return err
}

// kerberos returns a Kerberos client.
func (l Login) kerberos() (*krb5.Client, error) {
	if l.Krb5Conf == "" {
		return nil, fmt.Errorf("%w: this machine has no configuration of Kerberos: use a user name and a password "+
			"without "+
			"a realm, or set --smb-krb5-conf", backend.ErrNotReady)
	}
	cfg, err := config.Load(l.Krb5Conf)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", backend.ErrNotReady, l.Krb5Conf, err)
	}
	if len(l.CCache) == 0 {
		return krb5.NewWithPassword(l.User, l.Realm, l.Password, cfg, krb5.DisablePAFXFAST(true)), nil
	}
	cache := new(credentials.CCache)
	if err := unmarshal(cache, l.CCache); err != nil {
		return nil, err
	}
	kerberos, err := krb5.NewFromCCache(cache, cfg, krb5.DisablePAFXFAST(true))
	if err != nil {
		return nil, fmt.Errorf("%w: the credential cache has no usable ticket: %w", backend.ErrUnauthenticated, err)
	}
	return kerberos, nil
}

// Principal returns the principal of a login by Kerberos, with its realm.
func (l Login) Principal() (string, error) {
	if len(l.CCache) == 0 {
		return l.User + "@" + l.Realm, nil
	}
	cache := new(credentials.CCache)
	if err := unmarshal(cache, l.CCache); err != nil {
		return "", err
	}
	return cache.GetClientPrincipalName().PrincipalNameString() + "@" + cache.GetClientRealm(), nil
}

// unmarshal reads a credential cache. The parser panics if the file is cut off.
func unmarshal(cache *credentials.CCache, file []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: the credential cache is damaged", backend.ErrUnauthenticated)
		}
	}()
	if err := checkCache(file); err != nil {
		return err
	}
	if err := cache.Unmarshal(file); err != nil {
		return fmt.Errorf("%w: the credential cache is damaged: %w", backend.ErrUnauthenticated, err)
	}
	return nil
}

// digester makes digests of logins with a random key.
type digester [32]byte

func newDigester() (d digester) {
	rand.Read(d[:])
	return d
}

func (d digester) digest(l Login) [32]byte {
	text, err := json.Marshal(struct {
		Guest                         bool
		User, Domain, Password, Realm string
		CCache                        []byte
		Krb5Conf                      string
	}(l))
	if err != nil { // strings and bytes have a JSON form
		panic(err)
	}
	mac := hmac.New(sha256.New, d[:])
	mac.Write(text)
	return [32]byte(mac.Sum(nil))
}
