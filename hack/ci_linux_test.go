package hack

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCI runs .ci/run with a make that only notes its arguments.
func TestCI(t *testing.T) {
	goCommand, err := filepath.Abs("go")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, make, seconds string
		pass                bool
		want                []string
	}{
		{"all pass", "", "", true, []string{"\nmake test-copy ran\n== passed after ", "without ran\n", " all: passed\n",
			"left out: the clusters: CAUSEWAY_NO_CLUSTER is set"}},
		{"a suite fails", "[ $1 != lint ] || exit 3", "", false, []string{"== failed after ", "all: make lint failed\n", "not run      make vet"}},
		{"a suite changes the sources", "[ $1 != docs ] || echo changed >>go.mod", "", false,
			[]string{"all: the suites have changed the sources:  M go.mod\n"}},
		{"an invalid limit", "", "1h", false, []string{`invalid CAUSEWAY_CI_SECONDS "1h"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tree, path := t.TempDir(), t.TempDir()
			write := func(name, content string) {
				name = filepath.Join(tree, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), writeProgram(name, content)); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{".ci/run", ".gitignore", "hack/gate/gate.go", "hack/gate/main.go"} {
				content, err := os.ReadFile(filepath.Join("..", name))
				if err != nil {
					t.Fatal(err)
				}
				write(name, string(content))
			}
			write("go.mod", "module github.com/causeway-csi/causeway\n\ngo 1.26.0\n")
			write("hack/packages", "#!/bin/sh\n")
			write("hack/go", "#!/bin/sh\nexec "+goCommand+` "$@"`)
			write("hack/without-containercopy", "#!/bin/sh\necho without ran\n")
			write("containercopy/README.md", "")
			program(t, path, "make", c.make+"\necho make $* ran\n")
			for _, args := range [][]string{{"init", "-q"}, {"add", "."},
				{"-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "first"}} {
				if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", tree}, args...)...).CombinedOutput(); err != nil {
					t.Fatalf("git %s: %v, %s", args, err, out)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(tree, ".ci/run"))
			cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), "CAUSEWAY_NO_CLUSTER=1", "CAUSEWAY_CI_SECONDS="+c.seconds)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.pass {
				t.Errorf("%v, %s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q is missing in %s", want, out)
				}
			}
		})
	}
}
