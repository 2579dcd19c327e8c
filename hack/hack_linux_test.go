// Package hack tests the scripts in this directory, with other programs in place of those that they
// run.
package hack

import (
	"crypto/sha512"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/causeway-csi/causeway/internal/namespace"
)

// program writes a shell script called name to dir.
func program(t *testing.T, dir, name, script string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := writeProgram(path, "#!/bin/sh\n"+script); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeProgram writes the file of a program, while no process starts: a new process could have the
// file open to write for a moment, and the program could not run (ETXTBSY).
func writeProgram(path, content string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(content), 0o755)
}

// machine returns a PATH without Go. Its curl prints its arguments and fails.
func machine(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sh", "uname", "mkdir", "mktemp", "rm", "sed", "tr", "cat", "grep", "id", "dirname"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	program(t, dir, "unzip", "exit 1")
	program(t, dir, "curl", `for url; do :; done; echo "asked $url"; exit 22`)
	return dir
}

func TestWhereGoIsFetchedFrom(t *testing.T) {
	machine := machine(t)
	for goproxy, want := range map[string]string{
		"":                                     "asked https://proxy.golang.org/golang.org/toolchain",
		"https://proxy.golang.org,direct":      "asked https://proxy.golang.org/golang.org/toolchain",
		"https://one.example/|http://two":      "asked https://one.example/golang.org/toolchain",
		"direct,http://two.example/x/,off":     "asked http://two.example/x/golang.org/toolchain",
		"file:///mirror|https://three.example": "asked https://three.example/golang.org/toolchain",
		"direct":                               "asked https://proxy.golang.org/golang.org/toolchain",
		"off":                                  "GOPROXY is off",
		"direct,off":                           "GOPROXY is off",
	} {
		cmd := exec.Command("./go", "version")
		cmd.Env = []string{"PATH=" + machine, "GOPROXY=" + goproxy, "HOME=" + t.TempDir()}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("GOPROXY=%s: %v, %s; want %q", goproxy, err, out, want)
		}
	}
}

func TestGoIsFetchedIntoADirectory(t *testing.T) {
	machine := machine(t)
	for env, want := range map[string]string{
		"HOME=" + t.TempDir():           "asked https://",
		"XDG_CACHE_HOME=" + t.TempDir(): "asked https://",
		"HOME=":                         "neither HOME nor XDG_CACHE_HOME is set",
		"NONE=":                         "neither HOME nor XDG_CACHE_HOME is set",
	} {
		cmd := exec.Command("./go", "version")
		cmd.Env = []string{"PATH=" + machine, env}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s; want %q", env, err, out, want)
		}
	}
}

func TestAnInstalledGoNeedsNothingElse(t *testing.T) {
	machine := machine(t)
	program(t, machine, "go", `case $1 in env) echo go1.99.1 ;; *) echo "installed $*" ;; esac`)
	cmd := exec.Command("./go", "version")
	cmd.Env = []string{"PATH=" + machine, "GOPROXY=off"}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "installed version\n" {
		t.Errorf("%v, %s", err, out)
	}
}

// TestDocsUsesPinnedLibraries runs hack/docs with other pins: each library has the content
// "pinned".
func TestDocsUsesPinnedLibraries(t *testing.T) {
	const good, bad = "pinned", "changed"
	script, err := os.ReadFile("docs")
	if err != nil {
		t.Fatal(err)
	}
	packed := func(content string) []byte {
		dir := t.TempDir()
		for _, file := range []string{"dist/mermaid.min.js", "dist/umd/index.js"} {
			path := filepath.Join(dir, "package", file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.Command("tar", "-cz", "-C", dir, "package").Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	sum := func(content []byte) string { return fmt.Sprintf("%x", sha512.Sum512(content)) }
	for _, c := range []struct {
		name     string
		cached   string // content of the libraries in the cache
		registry string // content of the libraries in the packages of the registry; "": it is not reachable
		other    bool   // the packages have another sum
		pass     bool
		want     string // printed
		built    bool   // the site has the libraries
	}{
		{"cached", good, "", false, true, "", true},
		{"fetched", "", good, false, true, "", true},
		{"no network", "", "", false, true, "mermaid 12.3.0 cannot be fetched", false},
		{"another file in the cache, no network", bad, "", false, true, "has another sum than", false},
		{"another file in the cache", bad, good, false, true, "it is fetched again", true},
		{"another package", "", good, true, false, "mermaid 12.3.0 has the sum", false},
		{"another file in the package", "", bad, false, false, "dist/mermaid.min.js of mermaid 12.3.0 does not have the sum", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, path, cache, tmp := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
			archive := packed(c.registry)
			pin := sum(archive)
			if c.other {
				pin = sum(nil)
			}
			sums := 0
			edited := regexp.MustCompile(`[0-9a-f]{128}`).ReplaceAllStringFunc(string(script), func(string) string {
				if sums++; sums%2 == 1 {
					return pin
				}
				return sum([]byte(good))
			})
			if sums != 4 {
				t.Fatalf("hack/docs has %d sums", sums)
			}
			write := func(path, content string) {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeProgram(path, content)); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(root, "hack", "docs"), edited)
			write(filepath.Join(root, "site", "hugo.toml"), "")
			for _, old := range []string{"mermaid.js", "minisearch.js", "removed.js"} {
				write(filepath.Join(root, "bin", "docs-lib", old), "old")
			}
			program(t, filepath.Join(root, "hack"), "go", "echo "+program(t, path, "hugo", "echo with $HUGO_PARAMS_SEARCH$HUGO_PARAMS_DIAGRAMS"))
			write(filepath.Join(path, "package.tgz"), string(archive))
			curl := "exit 22"
			if c.registry != "" {
				curl = "while [ $1 != -o ]; do shift; done; cp " + filepath.Join(path, "package.tgz") + " $2"
			}
			program(t, path, "curl", curl)
			names := []string{"mermaid-12.3.0.js", "minisearch-7.2.0.js"}
			for _, name := range names {
				if c.cached != "" {
					write(filepath.Join(cache, "causeway", "npm", name), c.cached)
				}
			}
			cmd := exec.Command(filepath.Join(root, "hack", "docs"))
			cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+cache, "TMPDIR="+tmp)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.pass || !strings.Contains(string(out), c.want) ||
				c.built != strings.Contains(string(out), "with truetrue") {
				t.Errorf("%v, %s; want %q", err, out, c.want)
			}
			used, err := filepath.Glob(filepath.Join(root, "bin", "docs-lib", "*"))
			if err != nil || c.built && len(used) != 2 || !c.built && len(used) != 0 {
				t.Errorf("%v, libraries %v", err, used)
			}
			if c.built {
				for _, name := range names {
					used = append(used, filepath.Join(cache, "causeway", "npm", name))
				}
			}
			for _, path := range used {
				if content, err := os.ReadFile(path); err != nil || string(content) != good {
					t.Errorf("%s: %v, %s", path, err, content)
				}
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestReleaseCompilesTheCommit: hack/release compiles the program and cosign from a clone of HEAD,
// without the password of the key.
func TestReleaseCompilesTheCommit(t *testing.T) {
	script, err := os.ReadFile("release")
	if err != nil {
		t.Fatal(err)
	}
	root, tmp := t.TempDir(), t.TempDir()
	hack := filepath.Join(root, "hack")
	if err := os.Mkdir(hack, 0o755); err != nil {
		t.Fatal(err)
	}
	program(t, hack, "release", strings.TrimPrefix(string(script), "#!/bin/sh\n"))
	program(t, hack, "go", `[ -e "$(dirname "$0")/../ignored.go" ] && echo "ignored files are compiled" >&2
echo "compiled in ${2##*/} with the password ${COSIGN_PASSWORD-none}" >&2
case $3 in tool) echo /path/of/cosign ;; build) printf '#!/bin/sh\necho "run $* with $COSIGN_PASSWORD"; exit 7' >$5; chmod +x $5 ;; esac`)
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", root, "-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v, %s", args, err, out)
		}
	}
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--message=first")
	if err := os.WriteFile(filepath.Join(root, "ignored.go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ key, want string }{
		{"--key=/cosign key", "compiled in cosign with the password none\ncompiled in release with the password none\n" +
			"run --root=" + root + " --cosign=/path/of/cosign --version=v1.0.0 --key=/cosign key with secret\n"},
		{"--untagged", "compiled in release with the password none\n" +
			"run --root=" + root + " --cosign= --version=v1.0.0 --untagged with secret\n"},
	} {
		cmd := exec.Command(filepath.Join(hack, "release"), "--version=v1.0.0", c.key)
		cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=secret", "TMPDIR="+tmp)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 7 || string(out) != c.want {
			t.Errorf("%v, %s; want %s", err, out, c.want)
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

func TestFuzzFailsWhereItTestsNothing(t *testing.T) {
	dir := t.TempDir()
	tests := filepath.Join(dir, "some_test.go")
	if err := os.WriteFile(tests, []byte("func FuzzOne(f *testing.F) {\n\nfunc FuzzTwo(f *testing.F) {\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, goCommand string
		pass            bool
		want            string
	}{
		{"go list fails", "exit 1", false, ""},
		{"go list fails in the middle", "echo some/pkg " + tests + "; exit 1", false, ""},
		{"no package has tests", "exit 0", false, "no fuzz target"},
		{"no test is a target", "[ $1 = test ] || echo some/pkg /dev/null", false, "no fuzz target"},
		{"a target fails", "[ $1 = list ] && echo some/pkg " + tests + "|| { echo crasher; exit 1; }", false,
			"crasher"},
		{"a target ends late each time", "[ $1 = list ] && echo some/pkg " + tests + "|| { echo '    context deadline exceeded'; exit 1; }", false, "deadline"},
		{"a target finds something late",
			"[ $1 = list ] && echo some/pkg " + tests + "|| { printf '    context deadline exceeded\\nFailing " +
				"input'; exit 1; }", false, "Failing"},
		{"a target ends late once", "[ $1 = list ] && echo some/pkg " + tests + "|| [ -e " + dir + "/once ] || { touch " + dir + "/once; echo '    context deadline exceeded'; exit 1; }", true, "FuzzTwo"},
		{"all is well", "[ $1 = test ] || echo some/pkg " + tests, true, "some/pkg FuzzOne\nsome/pkg FuzzTwo\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("./fuzz", program(t, t.TempDir(), "go", c.goCommand))
			tmp := t.TempDir()
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.pass || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, %s; want %q", err, out, c.want)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// smallTree returns a tree with hack/follow-page and the modules that it publishes. The whole tree
// has thousands of files.
func smallTree(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	script, err := os.ReadFile("follow-page")
	if err != nil {
		t.Fatal(err)
	}
	goCommand, err := filepath.Abs("go")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"hack/follow-page": string(script), "hack/go": "#!/bin/sh\nexec " + goCommand + ` "$@"`, "LICENSE": ""}
	for _, dir := range []string{"", "/examples/minimal", "/examples/attached"} {
		files["."+dir+"/go.mod"] = "module github.com/causeway-csi/causeway" + dir + "\n\ngo 1.26.0\n"
	}
	for name, content := range files {
		path := filepath.Join(tree, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeProgram(path, content)); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

func TestFollowPage(t *testing.T) {
	namespace.Need(t, "git")
	tree := smallTree(t)
	const passed = "echo 5 Passed, 0 Failed; ls causeway/hack/follow-page\n"
	clone := "```sh\ngit clone https://github.com/causeway-csi/causeway\n"
	sanity := []string{"--sanity"}
	for _, c := range []struct {
		name  string
		flags []string
		page  string
		pass  bool
		want  string
	}{
		{"all is well", sanity, clone + "cd causeway\n```\nthen\n```sh\ncd ..\n" + passed + "```\n", true, "5 Passed"},
		{"a command fails", sanity, clone + "false\n" + passed + "```\n", false, "following"},
		{"a command of an earlier block fails", sanity, clone + "false\n```\n```sh\n" + passed + "```\n", false, "following"},
		{"what fails is not to be run", sanity, clone + passed + "```\n```go\nfalse\n```\n```\nfalse\n```\nfalse\n", true, "5 Passed"},
		{"it would be fetched from the network", sanity, "```sh\ngit clone https://github.invalid/causeway\n" + passed + "```\n", false, "not allowed"},
		{"there are no commands", sanity, passed, false, "csi-sanity did not run"},
		{"its word is in a command only", sanity, clone + ": 5 Passed, 0 Failed\n```\n", false, "csi-sanity did not run"},
		{"no spec ran", sanity, clone + "echo 0 Passed, 0 Failed\n```\n", false, "csi-sanity did not run"},
		{"it prints what the page shows", sanity, clone + passed + "echo one two\n```\n```text\none\ntwo\n```\n", true, "5 Passed"},
		{"it prints something else", sanity, clone + passed + "echo one two\n```\n```text\none\nthree\n```\n", false, "nothing printed: three"},
		{"a spec failed", sanity, clone + "echo 5 Passed, 1 Failed\n```\n", false, "csi-sanity did not run"},
		{"a block for a cluster is left out", sanity, clone + passed + "```\n```sh cluster\nfalse\n```\n", true, "5 Passed"},
		{"a module is from this tree", sanity, clone + ": gonew\ngo mod download -json github.com/causeway-csi/causeway@latest\n" + passed + "echo\n```\n", true, "5 Passed"},
		{"a test is not there", sanity, clone + passed + "echo 'ok x [no tests to run]'\n```\n", false, "did not run"},
		{"a test was skipped", sanity, clone + passed + "echo '--- SKIP: TestX (0.00s)'\n```\n", false, "did not run"},
		{"the page shows its output", nil, clone + "echo one\n```\n```text\none\n```\n", true, ""},
		{"the page shows another output", nil, clone + "echo one\n```\n```text\ntwo\n```\n", false, "nothing printed: two"},
		{"the page shows no output", nil, clone + passed + "```\n", false, "nothing was verified"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			page := filepath.Join(t.TempDir(), "page.md")
			if err := os.WriteFile(page, []byte(c.page), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(filepath.Join(tree, "hack/follow-page"), append(c.flags, page)...)
			tmp := t.TempDir()
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.pass || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, %s; want %q", err, out, c.want)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
