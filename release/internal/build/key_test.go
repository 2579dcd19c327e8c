package build_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/release/internal/releasetest"
)

// TestGitIgnoresKeys: a private key in the clone does not get into a commit of all files, and the
// build does not advise to commit it.
func TestGitIgnoresKeys(t *testing.T) {
	ignore, err := os.ReadFile(filepath.Join("..", "..", "..", ".gitignore"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	releasetest.Git(t, dir, "init", "--quiet")
	releasetest.Write(t, filepath.Join(dir, ".gitignore"), string(ignore))
	for _, name := range []string{"cosign.key", "import-cosign.key", "release/cosign.key"} {
		releasetest.Git(t, dir, "check-ignore", "--quiet", name)
	}
}

// keyFile matches the file of the private key in a command.
var keyFile = regexp.MustCompile(`(?:\bKEY=|--key=|--output-key-prefix=|\s-out )"?([^\s"]+)`)

// TestTheKeyIsOutsideOfTheClone: the build refuses untracked files, with the advice to commit them.
// The commands of the page and the help write and read the private key in another directory.
func TestTheKeyIsOutsideOfTheClone(t *testing.T) {
	for file, commands := range map[string]int{"docs/contributing/release.md": 6, "Makefile": 1} {
		content, err := os.ReadFile(filepath.Join("..", "..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range keyFile.FindAllStringSubmatch(string(content), -1) {
			if strings.HasPrefix(m[1], "$(") { // a variable of make
				continue
			}
			if found++; !strings.HasPrefix(m[1], "$HOME/") {
				t.Errorf("%s: the key is %s, must be in $HOME/", file, m[1])
			}
		}
		if found != commands {
			t.Errorf("%s has %d commands with a private key, want %d", file, found, commands)
		}
		if strings.Contains(string(content), "cosign generate-key-pair ") &&
			!strings.Contains(string(content), "cosign generate-key-pair --output-key-prefix=") {
			t.Errorf("%s: cosign writes a key into the working directory", file)
		}
	}
}
