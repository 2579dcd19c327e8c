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
	t.Setenv("COSIGN_PASSWORD", "secret")
	signer, err := build.NewCosign(t.Context(), program, "release.key")
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
}

func TestCosignNeedsAPassword(t *testing.T) {
	t.Setenv("COSIGN_PASSWORD", "")
	if err := os.Unsetenv("COSIGN_PASSWORD"); err != nil {
		t.Fatal(err)
	}
	if _, err := build.NewCosign(t.Context(), "cosign", "release.key"); err == nil ||
		!strings.Contains(err.Error(), "COSIGN_PASSWORD is not set") {
		t.Errorf("%v", err)
	}
	if _, err := build.NewCosign(t.Context(), "", "release.key"); err == nil ||
		!strings.Contains(err.Error(), "--key needs --cosign") {
		t.Errorf("%v", err)
	}
}
