package csidriver

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
	"github.com/causeway-csi/causeway/pkg/backend/hostpath"
	"github.com/causeway-csi/causeway/pkg/backend/smb"
)

// program returns the program of Causeway, with a second backend whose storage every process
// reaches.
func program() Program {
	var f hostpath.Flags
	var shares smb.Flags
	return Program{Name: "hostpath.csi.causeway.dev", Version: "v1.2.3", Backends: []Backend{
		{
			Name: "hostpath", Type: (*hostpath.Backend)(nil), Flags: f.Declare,
			Check: func(c Config) error { return f.Check(c.KubeletDir, c.StateDir) },
			Open:  func(Config) (backend.Backend, error) { return nil, errors.New("only the flags are tested") },
		},
		{
			Name: "central", DriverName: "central.csi.causeway.dev", Type: (*memory.Backend)(nil), Flags: shares.Declare,
			Open: func(Config) (backend.Backend, error) { return memory.New(memory.Config{}), nil },
		},
	}}
}

// env returns an Environment with these variables and without streams.
func env(variables map[string]string) Environment {
	return Environment{Command: "driver", Getenv: func(k string) string { return variables[k] },
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
}

// execute runs p and returns its exit code and output.
func execute(p Program, args ...string) (code int, stdout, stderr string) {
	var out, errOut strings.Builder
	e := env(nil)
	e.Stdout, e.Stderr = &out, &errOut
	code = Run(context.Background(), p, args, e)
	return code, out.String(), errOut.String()
}

func TestDefaults(t *testing.T) {
	o, err := parse(program(), nil, env(nil))
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		o.endpoint:   "unix:///var/lib/kubelet/plugins/hostpath.csi.causeway.dev/csi.sock",
		o.stateDir:   "/var/lib/kubelet/plugins/hostpath.csi.causeway.dev.state",
		o.driverName: "hostpath.csi.causeway.dev", // must not change: PersistentVolumes have this name
		o.backend:    "hostpath",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if o.nodeID == "" || o.allowTCP || o.httpEndpoint != "" || o.verbosity != 0 {
		t.Errorf("%+v", o)
	}
	o, err = parse(program(), []string{"--kubelet-dir=/k/", "--driver-name=x.example", "--node-id=n"}, env(nil))
	if err != nil || o.endpoint != "unix:///k/plugins/x.example/csi.sock" ||
		o.stateDir != "/k/plugins/x.example.state" || o.nodeID != "n" {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse(program(), nil, env(map[string]string{"CSI_ENDPOINT": "unix:///x.sock"}))
	if err != nil || o.endpoint != "unix:///x.sock" {
		t.Errorf("CSI_ENDPOINT is not used: %+v, %v", o, err)
	}
}

func TestInvalidFlagsAreReported(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		wantErr string
	}{
		"an unknown flag":                     {[]string{"--no-such-flag"}, "no-such-flag"},
		"an argument":                         {[]string{"stray"}, "stray"},
		"a log format":                        {[]string{"--log-format=xml"}, "--log-format"},
		"a relative kubelet directory":        {[]string{"--kubelet-dir=relative"}, "--kubelet-dir"},
		"a relative root":                     {[]string{"--root=relative"}, "--root"},
		"an empty root":                       {[]string{"--root="}, "--root"},
		"a relative state directory":          {[]string{"--state-dir=relative"}, "--state-dir"},
		"a driver name":                       {[]string{"--driver-name=../x"}, "--driver-name"},
		"a value after a switch":              {[]string{"--allow-tcp", "true"}, "is neither a flag nor a command"},
		"an unknown command":                  {[]string{"cert"}, "certs, list and show"},
		"a number":                            {[]string{"-v=loud"}, "parse error"},
		"a backend":                           {[]string{"--backend=tape"}, "tape"},
		"a node ID":                           {[]string{"--node-id=a/b"}, "--node-id"},
		"a node ID that is too long":          {[]string{"--node-id=" + strings.Repeat("n", 300)}, "--node-id"},
		"an endpoint":                         {[]string{"--endpoint=/csi.sock"}, "--endpoint"},
		"a long endpoint":                     {[]string{"--endpoint=unix:///" + strings.Repeat("x", 107)}, "108"},
		"TCP":                                 {[]string{"--endpoint=tcp://:1"}, "--allow-tcp"},
		"TCP without a port":                  {[]string{"--endpoint=tcp://host", "--allow-tcp"}, "missing port"},
		"an HTTP endpoint":                    {[]string{"--http-endpoint=8080"}, "--http-endpoint"},
		"a negative time":                     {[]string{"--drain-timeout=-1s"}, "--drain-timeout"},
		"a negative block":                    {[]string{"--metadata-block-size=-4096"}, "--metadata-block-size"},
		"not a multiple of 4096":              {[]string{"--metadata-block-size=6000"}, "multiple of 4096"},
		"a block with a unit":                 {[]string{"--metadata-block-size=64Ki"}, "metadata-block-size"},
		"a root that is the state directory":  {[]string{"--root=/x", "--state-dir=/x/"}, "--state-dir"},
		"a state directory in the root":       {[]string{"--root=/x", "--state-dir=/x/y"}, "--state-dir"},
		"a root in the state directory":       {[]string{"--root=/x/y", "--state-dir=/x"}, "--state-dir"},
		"a root in the kubelet directory":     {[]string{"--root=/var/lib/kubelet/x"}, "--kubelet-dir"},
		"a root around the kubelet directory": {[]string{"--root=/var/lib"}, "--kubelet-dir"},
		"the root directory of the system":    {[]string{"--root=/"}, "--root"},
		"a lost root that is a path":          {[]string{"--lost-roots=/var/lib/causeway"}, "invalid UUID"},
		"a lost root without a name": {[]string{"--lost-roots=" + "2b1e63f6-5b8b-4f0c-9d0b-0f3c4c0f4a11,"},
			"invalid UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(program(), tc.args, env(nil)); err == nil ||
				!strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: %v, want one line with %q in it", tc.args, err, tc.wantErr)
			}
		})
	}
	for _, args := range [][]string{
		{"--root=/var/lib/kubelet2"}, {"--root=/x", "--state-dir=/xy"}, {"--endpoint=tcp://127.0.0.1:0", "--allow-tcp"},
		{"--version", "--root=relative"}, {"--metadata-block-size=65536"}, {"--metadata-block-size=0"},
	} {
		if _, err := parse(program(), args, env(nil)); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestHelp(t *testing.T) {
	code, _, help := execute(program(), "--help")
	if code != 0 {
		t.Errorf("exit %d: %s", code, help)
	}
	for _, want := range []string{"--endpoint unix:///path.sock\n", "(default: /var/lib/kubelet)", "--allow-tcp"} {
		if !strings.Contains(help, want) {
			t.Errorf("%q is not in %s", want, help)
		}
	}
}

// TestTheDocumentedFlagsAreTheFlags compares docs/reference/flags.md with the declared flags.
func TestTheDocumentedFlagsAreTheFlags(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "flags.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--?([a-z0-9-]+)").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	var o options
	set := flag.NewFlagSet("driver", flag.ContinueOnError)
	if err := o.flags(program(), set); err != nil {
		t.Fatal(err)
	}
	set.VisitAll(func(f *flag.Flag) {
		if !documented[f.Name] {
			t.Errorf("--%s is not in docs/reference/flags.md", f.Name)
		}
		delete(documented, f.Name)
		if f.DefValue != "" && f.DefValue != "false" && !strings.Contains(string(page), "`"+f.DefValue+"`") {
			t.Errorf("the default of --%s, %s, is not in docs/reference/flags.md", f.Name, f.DefValue)
		}
	})
	for name := range documented {
		t.Errorf("docs/reference/flags.md has --%s, the command has not", name)
	}
}

// TestLogsEscapeControlCharacters: the author of a pod chooses names that are in errors.
func TestLogsEscapeControlCharacters(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		options{logFormat: format}.logger(&out).Info("a call", "name", "x\u009b2J\u202e")
		if got := out.String(); !strings.Contains(got, `\u009b2J\u202e`) || strings.ContainsAny(got, "\u009b\u202e") {
			t.Errorf("%s: %q", format, got)
		}
	}
}
