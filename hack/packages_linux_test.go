package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bare is a machine with few programs, on which hack/packages runs.
type bare struct {
	dir    string // of the programs
	script string
	policy string
	calls  string // of apt-get
}

// newBare returns a machine of a user with the user ID. Its apt-get, unless the machine is not
// Debian, makes the programs gpg and gpgv, and those in more.
func newBare(t *testing.T, uid string, debian bool, more ...string) bare {
	t.Helper()
	tmp := t.TempDir()
	b := bare{tmp + "/bin", tmp + "/packages", tmp + "/policy-rc.d", tmp + "/calls"}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "cat", "grep", "tr", "flock", "mktemp", "rm", "chmod"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(b.dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	program(t, b.dir, "id", "echo "+uid)
	for _, name := range []string{"make", "curl", "unzip"} {
		program(t, b.dir, name, "")
	}
	if debian {
		program(t, b.dir, "apt-get", `echo "$* $SYSTEMD_OFFLINE$DEBIAN_FRONTEND" >>`+b.calls+`
sh `+b.policy+`; echo "policy $?" >>`+b.calls+`
case $* in *update*) exit ;; esac
for p in gpg gpgv `+strings.Join(more, " ")+`; do >`+b.dir+`/$p; chmod 755 `+b.dir+`/$p; done`)
	}
	script, err := os.ReadFile("packages")
	if err != nil {
		t.Fatal(err)
	}
	edited := string(script)
	const argument = " " // only the path that is an argument
	for old, replacement := range map[string]string{"PATH=$PATH:/usr/sbin:/sbin": "", "/run/causeway": tmp + "/causeway",
		"/usr/sbin/policy-rc.d": b.policy, "/etc/ssl/certs/ca-certificates.crt" + argument: "/dev/null" + argument} {
		if strings.Count(edited, old) != 1 {
			t.Fatalf("hack/packages has %q not once", old)
		}
		edited = strings.Replace(edited, old, replacement, 1)
	}
	if err := writeProgram(b.script, edited); err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs hack/packages, and returns its output and whether it succeeds.
func (b bare) run(t *testing.T, groups ...string) (string, bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), b.script, groups...)
	cmd.Env = []string{"PATH=" + b.dir, "TMPDIR=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func (b bare) read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(content)
}

func TestPackagesInstallsOnDebian(t *testing.T) {
	b := newBare(t, "0", true, "osslsigncode")
	if out, ok := b.run(t, "images"); !ok || out != "installing: gpg gpgv osslsigncode\n" {
		t.Errorf("%v, %s", ok, out)
	}
	want := "-qq -o DPkg::Lock::Timeout=600 update 1noninteractive\npolicy 101\n" +
		"-qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends gpg gpgv osslsigncode 1noninteractive\npolicy 101\n"
	if calls := b.read(t, b.calls); calls != want {
		t.Errorf("apt-get was called with\n%swant\n%s", calls, want)
	}
	if left := b.read(t, b.policy); left != "" {
		t.Errorf("left: the policy %q", left)
	}
	if out, ok := b.run(t, "images"); !ok || out != "" {
		t.Errorf("a second time: %v, %s", ok, out)
	}
	if calls := b.read(t, b.calls); calls != want {
		t.Errorf("a second time apt-get was called: %s", calls)
	}
}

// TestPackagesKeepsThePolicyOfTheMachine: the file is an administrator's.
func TestPackagesKeepsThePolicyOfTheMachine(t *testing.T) {
	b := newBare(t, "0", true, "osslsigncode")
	const own = "exit 7\n"
	if err := os.WriteFile(b.policy, []byte(own), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, ok := b.run(t, "images"); !ok {
		t.Error(out)
	}
	if policy := b.read(t, b.policy); policy != own {
		t.Errorf("the policy is %q", policy)
	}
}

func TestPackagesFailsWhereProgramsAreMissing(t *testing.T) {
	const message = "These programs are missing: gpg gpgv osslsigncode\n" +
		"Install their packages as root:\n" +
		"  Debian: apt-get install gpg gpgv osslsigncode\n" +
		"  Fedora: dnf install gnupg2 osslsigncode\n" +
		"  Arch: pacman -S gnupg osslsigncode\n"
	for _, c := range []struct {
		name   string
		uid    string
		debian bool
		groups string
		pass   bool
		want   string
	}{
		{"a user on Debian", "1000", true, "images", false, message},
		{"root elsewhere", "0", false, "images", false, message},
		{"no group", "1000", true, "", false, "usage"},
		{"nothing is missing", "1000", true, "go", true, ""},
		{"programs for root, of a user", "1000", true, "demo", true, ""},
		{"programs for root, of root", "0", false, "demo", false, "missing: mkfs.ext4 resize2fs mkfs.xfs\n"},
		{"two groups", "1000", true, "images runc", false, "Debian: apt-get install gpg gpgv osslsigncode gcc libc6-dev pkg-config"},
		{"an unknown group", "0", true, "image", false, `no program is in the group "image"`},
		{"a package is no group", "0", true, "samba", false, `no program is in the group "samba"`},
		{"a program is no group", "0", true, "images mount", false, `no program is in the group "mount"`},
		{"the package does not have the program", "0", true, "images", false, "still missing after the installation of osslsigncode: osslsigncode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, ok := newBare(t, c.uid, c.debian).run(t, strings.Fields(c.groups)...)
			if ok != c.pass || !strings.Contains(out, c.want) || c.want == "" && out != "" {
				t.Errorf("%v, %s; want %v, %s", ok, out, c.pass, c.want)
			}
		})
	}
}

// TestTargetsInstallPackagesFirst: a target that needs other programs installs them before its
// first command.
func TestTargetsInstallPackagesFirst(t *testing.T) {
	// goOnly are the targets that need Go only: hack/go fetches it, with the group go.
	goOnly := []string{"help", "test-plugin", "windows-check", "build", "images", "release-verify", "bench-sidecars",
		"generate-flags", "generate-manifest", "generate-rbac", "chart", "fuzz", "vet", "plots"}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## .*\n\t(.*)$`).FindAllStringSubmatch(string(makefile), -1) {
		target, first := m[1], m[2]
		groups, needs := strings.CutPrefix(first, "$(NEED) ")
		groups = regexp.MustCompile(`\$\(if .*,(.*)\)`).ReplaceAllString(groups, "$1")
		if needs == slices.Contains(goOnly, target) {
			t.Errorf("make %s begins with %q: hack/packages must be there, unless the target needs Go only", target, first)
		}
		if needs {
			all = append(all, strings.Fields(groups)...)
		}
	}
	out, err := exec.CommandContext(t.Context(), "./packages", append([]string{"--list"}, all...)...).CombinedOutput()
	if err != nil || len(all) < 40 {
		t.Errorf("the groups of the targets: %v, %s", err, out)
	}
}

// TestModulesStandInOneList: go.work has all modules but those that only pin programs, and the
// Makefile has its modules from there.
func TestModulesStandInOneList(t *testing.T) {
	output := func(name string, args ...string) []string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = ".."
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return strings.Fields(string(out))
	}
	work, err := os.ReadFile("../go.work")
	if err != nil {
		t.Fatal(err)
	}
	var listed, all, made []string
	for _, m := range regexp.MustCompile(`(?m)^\t(.+)$`).FindAllStringSubmatch(string(work), -1) {
		module := filepath.Clean(m[1])
		listed = append(listed, module)
		if module != "." && module != "sidecars" && filepath.Dir(module) != "examples" {
			made = append(made, module)
		}
	}
	pins := regexp.MustCompile(`(^|/)(tools|upstream|crds)(/|$)`)
	for _, file := range output("git", "ls-files", "go.mod", "*/go.mod") {
		if dir := filepath.Dir(file); !pins.MatchString(dir) {
			all = append(all, dir)
		}
	}
	slices.Sort(listed)
	slices.Sort(all)
	if !slices.Equal(listed, all) {
		t.Errorf("go.work has the modules %q, the repository %q", listed, all)
	}
	slices.Sort(made)
	got := output("make", "--no-print-directory", "-s", "modules")
	if slices.Sort(got); !slices.Equal(got, made) {
		t.Errorf("make modules prints %q, want %q", got, made)
	}
}

// installs are commands that install packages of a distribution.
var installs = regexp.MustCompile(`\b(apt-get|apt|dnf|pacman)\b[^\n]* (install|-S) `)

// TestOnePlaceHasThePackages: a second list would soon differ from the first. A page or a message
// names hack/packages instead.
func TestOnePlaceHasThePackages(t *testing.T) {
	others := []string{"hack/packages", "hack/packages_linux_test.go", "deploy/linux/Dockerfile"} // the last one: of an image
	files, err := exec.CommandContext(t.Context(), "git", "-C", "..", "ls-files", "*.md", "*.go", "Makefile", ".ci", "hack",
		"*Dockerfile*").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(files)) {
		content, err := os.ReadFile(filepath.Join("..", name))
		if err != nil && !os.IsNotExist(err) { // removed, and not committed
			t.Fatal(err)
		}
		if found := installs.Find(content); found != nil && !slices.Contains(others, name) {
			t.Errorf("%s: %q: hack/packages has all packages", name, found)
		}
	}
}
