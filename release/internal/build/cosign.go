package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/causeway-csi/causeway/release/internal/attest"
)

// Cosign signs with the program cosign and a private key in a file, without a transparency log: the
// signature can be made and verified without a network.
type Cosign struct {
	program, key string
	environment  []string // with the password of the key
	public       attest.Key
}

// passwordVariable is the environment variable with the password of the key.
const passwordVariable = "COSIGN_PASSWORD"

// TakePassword returns the password of the key, and removes it from the environment: the compiler,
// Hugo and all other programs of the build inherit the environment, and only cosign needs the
// password. It may be empty.
func TakePassword() (password string, set bool, err error) {
	password, set = os.LookupEnv(passwordVariable)
	return password, set, os.Unsetenv(passwordVariable)
}

// NewCosign returns the signer of a key.
func NewCosign(ctx context.Context, program, key, password string) (Cosign, error) {
	c := Cosign{program: program, environment: append(os.Environ(), passwordVariable+"="+password)}
	if program == "" {
		return c, errors.New("--key needs --cosign")
	}
	var err error
	if c.key, err = filepath.Abs(key); err != nil {
		return c, err
	}
	out, err := c.run(ctx, "public-key", "--key="+c.key)
	if err != nil {
		return c, err
	}
	c.public, err = attest.ParseKey(out)
	return c, err
}

// Key implements Signer.
func (c Cosign) Key() attest.Key { return c.public }

// run returns the output of a command of cosign.
func (c Cosign) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Env, cmd.Stderr = c.environment, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("cosign %s: %w", args[0], err))
	}
	return out, nil
}

// Sign implements Signer. The envelope of the provenance is signed as a file, too: cosign
// attest-blob signs it in a way that cosign verify-blob-attestation rejects if the key is of
// Ed25519 (v3.1.3).
func (c Cosign) Sign(ctx context.Context, content []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "causeway-cosign-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file, bundle := filepath.Join(dir, "content"), filepath.Join(dir, "bundle")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return nil, err
	}
	if _, err := c.run(ctx, "sign-blob", "--yes", "--key="+c.key, "--use-signing-config=false", "--tlog-upload=false",
		"--bundle="+bundle, file); err != nil {
		return nil, err
	}
	made, err := os.ReadFile(bundle)
	if err != nil {
		return nil, err
	}
	return attest.SignatureOf(made)
}
