package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/release/internal/releasetest"
)

// script writes a shell script.
func script(t *testing.T, path, content string) string {
	t.Helper()
	releasetest.Write(t, path, "#!/bin/sh\n"+content)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOnlyCosignHasThePassword: the programs of the build, here hack/go, do not, with --key or
// without.
func TestOnlyCosignHasThePassword(t *testing.T) {
	data, err := filepath.Abs(filepath.Join("..", "..", "internal", "attest", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	for name, signed := range map[string]bool{"signed": true, "not signed": false} {
		t.Run(name, func(t *testing.T) {
			root, dir := releasetest.Repository(t), t.TempDir()
			t.Setenv("ENVIRONMENTS", dir)
			script(t, filepath.Join(root, "hack", "go"), `env >"$ENVIRONMENTS/go"; echo "here: $PWD" >&2; exit 3`)
			releasetest.Git(t, root, "add", ".")
			releasetest.Git(t, root, "commit", "--quiet", "--message=hack/go")
			releasetest.Git(t, root, "tag", "--force", releasetest.Version)
			args := []string{"--root=" + root, "--version=" + releasetest.Version, "--out=" + filepath.Join(t.TempDir(), "out")}
			if signed {
				cosign := script(t, filepath.Join(dir, "program"), `env >"$ENVIRONMENTS/cosign"; cat `+data+"/ecdsa.pub\n")
				args = append(args, "--cosign="+cosign, "--key=release.key")
			}
			t.Setenv("COSIGN_PASSWORD", "secret")
			if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "exit status 3") {
				t.Fatalf("%v, want the failure of hack/go", err)
			}
			for program, want := range map[string]bool{"go": false, "cosign": true} {
				if program == "cosign" && !signed {
					continue
				}
				environment, err := os.ReadFile(filepath.Join(dir, program))
				if err != nil || strings.Contains(string(environment), "secret") != want {
					t.Errorf("%s has the password: %t, want %t (%v)", program, !want, want, err)
				}
			}
		})
	}
}

func TestAKeyNeedsAPassword(t *testing.T) {
	t.Setenv("COSIGN_PASSWORD", "")
	if err := os.Unsetenv("COSIGN_PASSWORD"); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"--version=v0.1.0", "--out=" + t.TempDir(), "--cosign=cosign", "--key=release.key"})
	if err == nil || !strings.Contains(err.Error(), "COSIGN_PASSWORD is not set") {
		t.Errorf("%v", err)
	}
}
