// Package deploy checks manifests and chart against the rules of the router.
package deploy

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sidecar is a sidecar whose flags are in sidecars/.
type sidecar struct {
	module, release string
	flags           map[string]string            // its own, with their kinds, as its main declares them
	must            map[string]string            // flags that must be there, with their values
	mustNot         []string                     // flags that must not be
	values          map[string]func(string) bool // of mandatory flags without a fixed value
}

// common are the flags that all three have beside their own: from csi-lib-utils and component-base.
var common = map[string]string{
	"automaxprocs": "bool", "csi-address": "string", "feature-gates": "gates", "http-endpoint": "string", "kube-api-burst": "int", "kube-api-qps": "float",
	"kubeconfig": "string", "leader-election": "bool", "leader-election-labels": "string", "leader-election-lease-duration": "duration",
	"leader-election-namespace": "string", "leader-election-renew-deadline": "duration", "leader-election-retry-period": "duration",
	"log-flush-frequency": "duration", "log-json-info-buffer-size": "string", "log-json-split-stream": "bool", "log-text-info-buffer-size": "string",
	"log-text-split-stream": "bool", "logging-format": "string", "metrics-address": "string", "metrics-path": "string", "v": "int", "version": "bool", "vmodule": "string",
}

var sidecars = map[string]sidecar{
	"csi-provisioner": {
		module: "external-provisioner/v6", release: "v6.4.0",
		flags: map[string]string{
			"capacity-for-immediate-binding": "bool", "capacity-ownerref-level": "int", "capacity-poll-interval": "duration", "capacity-threads": "uint",
			"cloning-protection-threads": "uint", "controller-publish-readonly": "bool", "default-fstype": "string", "enable-capacity": "bool",
			"enable-pprof": "bool", "extra-create-metadata": "bool", "immediate-topology": "bool", "kube-api-capacity-burst": "int",
			"kube-api-capacity-qps": "float", "master": "string", "node-deployment": "bool", "node-deployment-base-delay": "duration",
			"node-deployment-immediate-binding": "bool", "node-deployment-max-delay": "duration", "prevent-volume-mode-conversion": "bool",
			"retry-interval-max": "duration", "retry-interval-start": "duration", "snapshot-orphan-sweep-interval": "duration", "strict-topology": "bool",
			"timeout": "duration", "volume-name-prefix": "string", "volume-name-uuid-length": "int", "worker-threads": "uint",
		},
		must: map[string]string{"immediate-topology": "false", "enable-capacity": "true", "capacity-ownerref-level": "2", "extra-create-metadata": "true", "leader-election": "true", "retry-interval-max": "5m"},
		mustNot: []string{"strict-topology", "node-deployment", "default-fstype", "volume-name-uuid-length",
			"volume-name-prefix", "feature-gates"},
		values: map[string]func(string) bool{
			"timeout": atLeast(30 * time.Second), "capacity-poll-interval": atMost(2 * time.Minute),
			"capacity-threads": more(1), "kube-api-capacity-qps": more(1), "kube-api-capacity-burst": more(5),
		},
	},
	"csi-snapshotter": {
		module: "external-snapshotter/v8", release: "v8.7.0",
		flags: map[string]string{
			"extra-create-metadata": "bool", "groupsnapshot-name-prefix": "string", "groupsnapshot-name-uuid-length": "int", "node-deployment": "bool",
			"resync-period": "duration", "retry-interval-max": "duration", "retry-interval-start": "duration", "snapshot-name-prefix": "string",
			"snapshot-name-uuid-length": "int", "timeout": "duration", "worker-threads": "int",
		},
		must: map[string]string{"extra-create-metadata": "true", "leader-election": "true"},
		mustNot: []string{"node-deployment", "snapshot-name-uuid-length", "groupsnapshot-name-uuid-length",
			"snapshot-name-prefix", "groupsnapshot-name-prefix", "feature-gates"},
		values: map[string]func(string) bool{"timeout": atLeast(30 * time.Second), "worker-threads": more(10)},
	},
	"csi-resizer": {
		module: "external-resizer/v2", release: "v2.3.0",
		flags: map[string]string{
			"extra-modify-metadata": "bool", "handle-volume-inuse-error": "bool", "master": "string", "modify-timeout": "duration", "resize-timeout": "duration",
			"resync-period": "duration", "retry-interval-max": "duration", "retry-interval-start": "duration", "timeout": "duration", "workers": "int",
		},
		must: map[string]string{"handle-volume-inuse-error": "false", "leader-election": "true"},
	},
}

func atLeast(d time.Duration) func(string) bool {
	return func(s string) bool { got, err := time.ParseDuration(s); return err == nil && got >= d }
}

func atMost(d time.Duration) func(string) bool {
	return func(s string) bool { got, err := time.ParseDuration(s); return err == nil && got > 0 && got <= d }
}

func more(n float64) func(string) bool {
	return func(s string) bool { got, err := strconv.ParseFloat(s, 64); return err == nil && got > n }
}

// argument is a line of a file of flags.
type argument struct{ name, value, reason string }

var flagLine = regexp.MustCompile(`^--([a-z][a-z-]*)(?:=(\S+))?$`)

// arguments reads a file of flags, and returns the errors of its form.
func arguments(text string) (args []argument, wrong []string) {
	reason := ""
	for i, line := range strings.Split(text, "\n") {
		switch m := flagLine.FindStringSubmatch(line); {
		case line == "":
			reason = ""
		case strings.HasPrefix(line, "# "):
			reason += line[2:]
		case m == nil:
			wrong = append(wrong, fmt.Sprintf("line %d is neither a flag nor a comment: %q", i+1, line))
		default:
			args = append(args, argument{m[1], cmp.Or(m[2], "true"), reason})
			reason = ""
		}
	}
	return args, wrong
}

// isValue reports whether a flag of a kind can be given a value.
func isValue(kind, value string) bool {
	var err error
	switch kind {
	case "bool":
		_, err = strconv.ParseBool(value)
	case "duration":
		_, err = time.ParseDuration(value)
	case "int":
		_, err = strconv.Atoi(value)
	case "uint":
		_, err = strconv.ParseUint(value, 10, 32)
	case "float":
		_, err = strconv.ParseFloat(value, 64)
	}
	return err == nil
}

// check returns the errors of the flags of a sidecar.
func (s sidecar) check(text string) []string {
	args, wrong := arguments(text)
	given := map[string]string{}
	for _, a := range args {
		kind, known := s.flags[a.name]
		if !known {
			kind, known = common[a.name]
		}
		if _, twice := given[a.name]; twice {
			wrong = append(wrong, "--"+a.name+" is there twice")
		}
		given[a.name] = a.value
		switch {
		case !known:
			wrong = append(wrong, "--"+a.name+": upstream has no such flag")
		case !isValue(kind, a.value):
			wrong = append(wrong, "--"+a.name+"="+a.value+" is no "+kind)
		}
		if len(a.reason) < 20 {
			wrong = append(wrong, "--"+a.name+" has no reason")
		}
	}
	for name, want := range s.must {
		if got, ok := given[name]; got != want {
			wrong = append(wrong, fmt.Sprintf("--%s=%s, %t: it must be %s", name, got, ok, want))
		}
	}
	for name, ok := range s.values {
		if got := given[name]; !ok(got) {
			wrong = append(wrong, fmt.Sprintf("--%s=%s: the reason that stands there does not hold for that", name, got))
		}
	}
	for _, name := range s.mustNot {
		if _, ok := given[name]; ok {
			wrong = append(wrong, "--"+name+" must not be there")
		}
	}
	return wrong
}

// root is the directory of the repository.
var root = filepath.Join("..", "..", "..")

// read returns a file of the repository.
func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.Join(path...)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFlagsOfSidecars(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "deploy", "sidecars", "*"))
	if err != nil || len(files) != len(sidecars) {
		t.Errorf("there are %q, %v, for %d sidecars", files, err, len(sidecars))
	}
	for name, s := range sidecars {
		text := read(t, "deploy", "sidecars", name+".args")
		for _, wrong := range s.check(text) {
			t.Errorf("%s: %s", name, wrong)
		}
		if !strings.Contains(text, s.release) {
			t.Errorf("%s does not say that it is for %s", name, s.release)
		}
		if page := read(t, "docs", "explanation", "router.md"); !strings.Contains(page,
			"(../../deploy/sidecars/"+name+".args)") {
			t.Errorf("docs/explanation/router.md has no link to %s.args", name)
		}
	}
}

// TestTheCheckSees breaks each rule in turn.
func TestTheCheckSees(t *testing.T) {
	comment := "# A reason that is long enough to be one.\n"
	for _, tc := range []struct{ name, sidecar, old, new, want string }{
		{"a flag that upstream has not", "csi-provisioner", "--enable-capacity\n",
			"--enable-capacity\n\n" + comment + "--enable-magic\n", "--enable-magic: upstream has no such flag"},
		{"another sidecar's flag", "csi-resizer", "--leader-election\n", "--leader-election\n\n" + comment + "--immediate-topology=false\n", "--immediate-topology: upstream has no such flag"},
		{"a value of another kind", "csi-provisioner", "--timeout=60s", "--timeout=60", "--timeout=60 is no duration"},
		{"no reason", "csi-resizer", "# The Deployment has two replicas.\n--leader-election", "\n--leader-election",
			"--leader-election has no reason"},
		{"two flags on a line", "csi-resizer", "--leader-election", "--leader-election --v=5",
			"neither a flag nor a comment"},
		{"a flag twice", "csi-resizer", "--leader-election\n", "--leader-election\n" + comment + "--leader-election\n",
			"--leader-election is there twice"},
		{"strict topology", "csi-provisioner", "--enable-capacity\n",
			"--enable-capacity\n\n" + comment + "--strict-topology\n", "--strict-topology must not be there"},
		{"strict topology, off", "csi-provisioner", "--enable-capacity\n",
			"--enable-capacity\n\n" + comment + "--strict-topology=false\n", "--strict-topology must not be there"},
		{"no topology", "csi-provisioner", "--enable-capacity\n", "--enable-capacity\n\n" + comment + "--feature-gates=Topology=false\n", "--feature-gates must not be there"},
		{"immediate topology", "csi-provisioner", "--immediate-topology=false", "--immediate-topology=true",
			"it must be false"},
		{"upstream's immediate topology", "csi-provisioner", "--immediate-topology=false", "",
			"--immediate-topology=, false: it must be false"},
		{"no capacity", "csi-provisioner", "--enable-capacity\n", "", "--enable-capacity=, false: it must be true"},
		{"the wrong owner", "csi-provisioner", "-level=2", "-level=1", "it must be 2"},
		{"upstream's rate", "csi-provisioner", "capacity-qps=10", "capacity-qps=1",
			"--kube-api-capacity-qps=1: the reason"},
		{"upstream's burst", "csi-provisioner", "capacity-burst=10", "capacity-burst=5",
			"--kube-api-capacity-burst=5: the reason"},
		{"one thread", "csi-provisioner", "-threads=10", "-threads=1", "--capacity-threads=1: the reason"},
		{"a rare poll", "csi-provisioner", "-interval=1m", "-interval=1h", "--capacity-poll-interval=1h: the reason"},
		{"a short time-out", "csi-provisioner", "--timeout=60s", "--timeout=10s", "--timeout=10s: the reason"},
		{"nobody is elected", "csi-snapshotter", "--leader-election\n", "", "--leader-election=, false"},
		{"a gate with which it does not end", "csi-snapshotter", "--leader-election\n", "--leader-election\n\n" + comment + "--feature-gates=ReleaseLeaderElectionOnExit=true\n", "--feature-gates must not be there"},
		{"short names", "csi-snapshotter", "--leader-election\n", "--leader-election\n\n" + comment + "--snapshot-name-uuid-length=8\n", "--snapshot-name-uuid-length must not be there"},
		{"few workers", "csi-snapshotter", "--worker-threads=100", "--worker-threads=10",
			"--worker-threads=10: the reason"},
		{"pods are watched", "csi-resizer", "-error=false", "-error=true", "it must be false"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := read(t, "deploy", "sidecars", tc.sidecar+".args")
			broken := strings.Replace(text, tc.old, tc.new, 1)
			if broken == text {
				t.Fatalf("%q is not in the file", tc.old)
			}
			if wrong := sidecars[tc.sidecar].check(broken); !slices.ContainsFunc(wrong,
				func(w string) bool { return strings.Contains(w, tc.want) }) {
				t.Errorf("it says %q, want %q", wrong, tc.want)
			}
		})
	}
}

// TestTheFlagsAreUpstreams compares the table above with upstream's source, where the module cache
// has it: go mod download github.com/kubernetes-csi/external-provisioner/v6@v6.4.0, and so on.
func TestTheFlagsAreUpstreams(t *testing.T) {
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range sidecars {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(strings.TrimSpace(string(cache)), "github.com", "kubernetes-csi",
				s.module+"@"+s.release, "cmd", name)
			files, err := filepath.Glob(filepath.Join(dir, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, file := range files {
				if !strings.HasSuffix(file, "_test.go") {
					declared(t, file, got)
				}
			}
			if len(got) == 0 {
				t.Skipf("%s is not there", dir)
			}
			delete(got, "feature-gates") // which all have
			if !maps.Equal(got, s.flags) {
				t.Errorf("upstream has %v, and the table %v", got, s.flags)
			}
		})
	}
}

// declared adds the flags that a Go file declares.
func declared(t *testing.T, file string, flags map[string]string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || len(call.Args) < 2 {
			return true
		}
		set, ok := method.X.(*ast.Ident)
		if !ok || set.Name != "flag" {
			return true
		}
		name, kind := call.Args[0], strings.TrimRight(strings.ToLower(method.Sel.Name), "0123456789")
		if method.Sel.Name == "Var" {
			name, kind = call.Args[1], "gates"
		}
		if literal, ok := name.(*ast.BasicLit); ok {
			flags[strings.Trim(literal.Value, `"`)] = kind
		}
		return true
	})
}

// TestUpstreamTakesTheFlags starts upstream's programs with them, where CAUSEWAY_SIDECARS is a
// directory that has them.
func TestUpstreamTakesTheFlags(t *testing.T) {
	dir := os.Getenv("CAUSEWAY_SIDECARS")
	if dir == "" {
		t.Skip("CAUSEWAY_SIDECARS does not say where csi-provisioner, csi-snapshotter and csi-resizer are")
	}
	for name := range sidecars {
		args, _ := arguments(read(t, "deploy", "sidecars", name+".args"))
		line := []string{"--version"}
		for _, a := range args {
			line = append(line, "--"+a.name+"="+a.value)
		}
		if out, err := exec.Command(filepath.Join(dir, name), line...).CombinedOutput(); err != nil {
			t.Errorf("%s %q: %v: %s", name, line, err, out)
		}
	}
}
