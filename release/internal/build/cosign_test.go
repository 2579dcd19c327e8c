package build_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/release/internal/build"
	"github.com/causeway-csi/causeway/release/internal/releasetest"
)

// substitute is a program that answers as cosign, with files that cosign made, and notes its
// arguments.
const substitute = `#!/bin/sh
echo "$@" >>"$0.args"
echo "$COSIGN_PASSWORD" >>"$0.passwords"
case $1 in
public-key) cat "$DATA/ecdsa.pub" ;;
sign-blob) for a; do case $a in --bundle=*) cp "$DATA/ecdsa.cosign.json" "${a#--bundle=}" ;; esac; done ;;
*) exit 1 ;;
esac
`

// TestCosignIsCalledOffline: without the log, and with the password in the environment only. The
// signature is one of cosign's, so it fits the content.
func TestCosignIsCalledOffline(t *testing.T) {
	data, err := filepath.Abs(filepath.Join("..", "attest", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "cosign")
	releasetest.Write(t, program, substitute)
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DATA", data)
	signer, err := build.NewCosign(t.Context(), program, "release.key", "secret")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(data, "CHECKSUMS"))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := signer.Sign(t.Context(), content)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := signer.Key().Bundle(content, signature)
	if err != nil {
		t.Fatal(err)
	}
	if err := signer.Key().VerifyBlob(content, bundle); err != nil {
		t.Error(err)
	}
	args, err := os.ReadFile(program + ".args")
	if err != nil || !strings.Contains(string(args), "--tlog-upload=false") ||
		!strings.Contains(string(args), "--use-signing-config=false") || strings.Contains(string(args), "secret") {
		t.Errorf("%v, %s", err, args)
	}
	passwords, err := os.ReadFile(program + ".passwords")
	if err != nil || string(passwords) != "secret\nsecret\n" {
		t.Errorf("%v, cosign had the passwords %q", err, passwords)
	}
}

// TestThePasswordIsTaken: it leaves the environment, which other programs inherit.
func TestThePasswordIsTaken(t *testing.T) {
	for _, password := range []string{"secret", ""} {
		t.Setenv("COSIGN_PASSWORD", password)
		if got, set, err := build.TakePassword(); got != password || !set || err != nil {
			t.Errorf("%q, %t, %v, want %q", got, set, err, password)
		}
		if _, set := os.LookupEnv("COSIGN_PASSWORD"); set {
			t.Error("the password is in the environment")
		}
	}
	if _, set, err := build.TakePassword(); set || err != nil {
		t.Errorf("%t, %v", set, err)
	}
}

func TestCosignNeedsAProgram(t *testing.T) {
	if _, err := build.NewCosign(t.Context(), "", "release.key", ""); err == nil ||
		!strings.Contains(err.Error(), "--key needs --cosign") {
		t.Errorf("%v", err)
	}
}
