package attest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSignaturesOfCosign verifies signatures that cosign v3.1.3 made, by keys of both kinds:
// testdata/README.md.
func TestSignaturesOfCosign(t *testing.T) {
	content := read(t, "CHECKSUMS")
	for _, kind := range []string{"ecdsa", "ed25519"} {
		key, err := ParseKey(read(t, kind+".pub"))
		if err != nil {
			t.Fatal(err)
		}
		signature, err := SignatureOf(read(t, kind+".cosign.json"))
		if err != nil {
			t.Fatal(err)
		}
		bundle, err := key.Bundle(content, signature)
		if err != nil {
			t.Fatal(err)
		}
		if err := key.VerifyBlob(content, bundle); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if err := key.VerifyBlob(append(content, '\n'), bundle); err == nil {
			t.Errorf("%s: the signature of other content is verified", kind)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestInvalidKeysAreRejected(t *testing.T) {
	for name, key := range map[string]string{
		"no PEM":        "key",
		"a private key": "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIGxA\n-----END PRIVATE KEY-----\n",
		"no key in it":  "-----BEGIN PUBLIC KEY-----\nMC4CAQAw\n-----END PUBLIC KEY-----\n",
	} {
		if _, err := ParseKey([]byte(key)); err == nil || !strings.Contains(err.Error(), "invalid key") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if (Key{}).verify(nil, nil) {
		t.Error("no key verifies a signature")
	}
}

// TestPAE is the example of the specification of DSSE v1.
func TestPAE(t *testing.T) {
	e := Envelope{PayloadType: "http://example.com/HelloWorld", Payload: []byte("hello world")}
	if got, want := string(e.PAE()), "DSSEv1 29 http://example.com/HelloWorld 11 hello world"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestChecksumsHaveOneFormat(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for name, tc := range map[string]struct {
		text  string
		valid bool
	}{
		"two files":         {a + "  one\n" + b + "  two\n", true},
		"none":              {"", true},
		"a wrong order":     {a + "  two\n" + b + "  one\n", false},
		"a file twice":      {a + "  one\n" + b + "  one\n", false},
		"no newline":        {a + "  one", false},
		"binary mode":       {a + " *one\n", false},
		"a directory":       {a + "  ../one\n", false},
		"a hidden file":     {a + "  .one\n", false},
		"capital letters":   {strings.ToUpper(a) + "  one\n", false},
		"a carriage return": {a + "  one\r\n", false},
	} {
		if _, err := ParseSums([]byte(tc.text)); (err == nil) != tc.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnotherStatementIsRejected: an envelope with data that no field of the statement has.
func TestAnotherStatementIsRejected(t *testing.T) {
	e, err := Wrap(NewStatement(Build{Version: "v1.0.0", Commit: "abc"}, Sums{"a": strings.Repeat("a", 64)}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Statement(); err != nil {
		t.Errorf("a statement: %v", err)
	}
	payload := string(e.Payload)
	for name, change := range map[string]func(*Envelope){
		"another payload type": func(e *Envelope) { e.PayloadType = "text/plain" },
		"another predicate": func(e *Envelope) {
			e.Payload = []byte(strings.Replace(payload, "provenance/v1", "provenance/v2", 1))
		},
		"an unknown field": func(e *Envelope) { e.Payload = []byte(strings.Replace(payload, "{", `{"x":1,`, 1)) },
		"data after it":    func(e *Envelope) { e.Payload = []byte(payload + "{}") },
	} {
		other := e
		change(&other)
		if _, err := other.Statement(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
