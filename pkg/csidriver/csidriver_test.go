package csidriver

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
)

func openNothing(Config) (backend.Backend, error) { return memory.New(memory.Config{}), nil }

func TestAnInvalidProgramIsReported(t *testing.T) {
	declares := func(names ...string) func(*flag.FlagSet) {
		return func(set *flag.FlagSet) {
			for _, n := range names {
				set.String(n, "", "")
			}
		}
	}
	one := Backend{Name: "one", Open: openNothing}
	for name, tc := range map[string]struct {
		name     string
		backends []Backend
		wantErr  string
	}{
		"no backend": {"x.example", nil, "no backend"},
		"two backends with the same name": {"x.example", []Backend{one, one},
			`two backends have the name "one"`},
		"a backend without a name": {"x.example", []Backend{{Open: openNothing}}, `invalid name ""`},
		"a backend's name with a space": {"x.example", []Backend{{Name: "a b", Open: openNothing}},
			`invalid name "a b"`},
		"a backend without Open": {"x.example", []Backend{{Name: "one"}}, "no function Open"},
		"no driver name":         {"", []Backend{one}, `driver name ""`},
		"an invalid driver name": {"../x", []Backend{one}, `driver name "../x"`},
		"an invalid driver name of a backend": {"x.example",
			[]Backend{{Name: "one", DriverName: "a_b", Open: openNothing}}, `driver name "a_b"`},
		"a flag twice in one backend": {"x.example",
			[]Backend{{Name: "one", Flags: declares("size", "size"), Open: openNothing}}, "flag redefined: size"},
		"a flag twice in two backends": {"x.example",
			[]Backend{{Name: "one", Flags: declares("size"), Open: openNothing},
				{Name: "two", Flags: declares("size"), Open: openNothing}},
			`flag --size of backend "two" is defined twice`},
		"a flag that every driver has": {"x.example",
			[]Backend{{Name: "one", Flags: declares("mode"), Open: openNothing}},
			`flag --mode of backend "one" is defined twice`},
		"a flag's name with a minus sign": {"x.example",
			[]Backend{{Name: "one", Flags: declares("-size"), Open: openNothing}}, "begins with -"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := execute(Program{Name: tc.name, Backends: tc.backends}, "--version")
			if code != 2 || out != "" || !strings.Contains(errOut, "invalid program") ||
				!strings.Contains(errOut, tc.wantErr) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("exit %d, %s%s, want 2 and one line with %q in it", code, out, errOut, tc.wantErr)
			}
		})
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	if code, out, errOut := execute(program(), "--version"); code != 0 ||
		!strings.HasPrefix(out, "driver v1.2.3, CSI v1.13.0, ") || errOut != "" {
		t.Errorf("exit %d, %q, %q", code, out, errOut)
	}
}

func TestEachBackendHasItsDriverName(t *testing.T) {
	o, err := parse(program(), []string{"--backend=central"}, env(nil))
	if err != nil || o.driverName != "central.csi.causeway.dev" ||
		o.endpoint != "unix:///var/lib/kubelet/plugins/central.csi.causeway.dev/csi.sock" {
		t.Errorf("%+v, %v", o, err)
	}
}

// local is storage on nodes.
type local struct{ *memory.Backend }

func (local) Node() string { return "n" }

// TestAWrongTypeOfABackendIsReported: with a wrong type, a controller would not be a router.
func TestAWrongTypeOfABackendIsReported(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") // short, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	openLocal := func(Config) (backend.Backend, error) { return local{memory.New(memory.Config{})}, nil }
	for name, b := range map[string]Backend{
		"storage on nodes without a type": {Open: openLocal},
		"another type":                    {Type: (*memory.Backend)(nil), Open: openLocal},
		"no backend":                      {Open: func(Config) (backend.Backend, error) { return nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			want := "must be (csidriver.local)(nil)"
			if name == "no backend" {
				want = "returned neither a backend nor an error"
			}
			b.Name = "b"
			code, _, errOut := execute(Program{Name: "x.example", Backends: []Backend{b}}, "--mode=all",
				"--endpoint=unix://"+filepath.Join(dir, "csi.sock"), "--kubelet-dir="+dir,
				"--state-dir="+filepath.Join(dir, "state"), "--node-id=n")
			if code != 1 || !strings.Contains(errOut, want) {
				t.Errorf("exit %d, %s", code, errOut)
			}
		})
	}
}

func TestConfigHasController(t *testing.T) {
	p := Program{Name: "x.example", Backends: []Backend{
		{Name: "anywhere", Open: openNothing},
		{Name: "local", Open: openNothing, Type: local{}},
	}}
	for _, row := range []struct {
		mode    mode
		backend string
		want    bool
	}{
		{modeAll, "anywhere", true}, {modeController, "anywhere", true}, {modeNode, "anywhere", false},
		{modeAll, "local", true}, {modeNode, "local", true},
	} {
		o := &options{program: p, backend: row.backend, mode: row.mode}
		if got := o.config().Controller; got != row.want {
			t.Errorf("Controller = %v with --mode=%s and --backend=%s", got, row.mode, row.backend)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(context.Background())
	socket := filepath.Join(dir, "csi.sock")
	opened := Config{}
	p := Program{Name: "x.example", Version: "v7",
		Backends: []Backend{{Name: "b", Open: func(c Config) (backend.Backend, error) {
			opened = c
			cancel()
			return memory.New(memory.Config{}), nil
		}}}}
	if code := Run(ctx, p, []string{"--endpoint=unix://" + socket, "--kubelet-dir=" + dir, "--node-id=n",
		"--mode=controller"}, env(nil)); code != 0 {
		t.Errorf("exit %d", code)
	}
	if opened.DriverName != "x.example" || opened.Version != "v7" || opened.NodeID != "n" || opened.KubeletDir != dir ||
		opened.Images != nil || opened.Log == nil {
		t.Errorf("%+v", opened)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestMetricsHaveNoLabelOfATarget: Prometheus sets these labels for the target that it scrapes, and
// renames those of the metrics to exported_endpoint and so on. Rules would read the target's.
func TestMetricsHaveNoLabelOfATarget(t *testing.T) {
	l, err := listen(options{endpoint: "unix://" + filepath.Join(t.TempDir(), "s"), httpEndpoint: "127.0.0.1:0",
		peers: peerFlags{listen: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(buildInfo(options{}))
	l.measure(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var listeners []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if slices.Contains(ofTarget, label.GetName()) {
					t.Errorf("%s has the label %s", f.GetName(), label.GetName())
				}
				if label.GetName() == "listener" {
					listeners = append(listeners, label.GetValue())
				}
			}
		}
	}
	if !slices.Equal(listeners, []string{"http-endpoint", "peer-listen"}) {
		t.Errorf("the metrics are of the listeners %q", listeners)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(causeway_\\w+)` \\| \\w+, by ([^|]+) \\|").FindAllStringSubmatch(string(page), -1)
	if len(rows) < 12 {
		t.Errorf("docs/reference/metrics.md has only %d metrics with labels", len(rows))
	}
	for _, row := range rows {
		for _, label := range ofTarget {
			if strings.Contains(row[2], "`"+label+"`") {
				t.Errorf("docs/reference/metrics.md: %s has the label %s", row[1], label)
			}
		}
	}
}

// ofTarget are the labels that a PodMonitor or a ServiceMonitor gives a target.
var ofTarget = []string{"pod", "container", "endpoint", "job", "instance", "service", "namespace"}

// TestBuildInfo: the alert of different releases compares the labels.
func TestBuildInfo(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(buildInfo(options{program: Program{Version: "v7"}, mode: modeNode, backend: "b",
		driverName: "x.example"}))
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "causeway_build_info" {
		t.Fatal(families, err)
	}
	got := map[string]string{}
	for _, l := range families[0].GetMetric()[0].GetLabel() {
		got[l.GetName()] = l.GetValue()
	}
	if want := map[string]string{"version": "v7", "mode": "node", "backend": "b", "driver": "x.example"}; !maps.Equal(got,
		want) || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("labels %v, want %v", got, want)
	}
}
