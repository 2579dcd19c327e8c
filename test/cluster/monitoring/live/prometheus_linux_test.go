package live

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/monitoring"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// prometheus is a running Prometheus.
type prometheus struct {
	*testing.T
	url string
}

// start starts Prometheus with the chart's rules, and ends it with the test. Alerts wait for 5 s
// instead of minutes; their expressions are unchanged.
func start(t *testing.T) *prometheus {
	t.Helper()
	bin, err := monitoring.Programs(t.Context(), os.Stderr, "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	dir, address := t.TempDir(), freeAddress(t)
	server := credentials(t, dir)
	config, err := os.ReadFile(filepath.Join("..", "testdata", "prometheus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("KUBE/", dir+"/", "API_SERVER", server, "RULES", filepath.Join(dir, "rules.yaml")).
		Replace(string(config))
	rules, err := os.ReadFile(filepath.Join(chart.Directory(), "files", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	quick := regexp.MustCompile(`(?m)^    (for|keep_firing_for): .*$`).ReplaceAllString(string(rules), "    $1: 5s")
	for name, content := range map[string]string{"prometheus.yaml": text, "rules.yaml": quick} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "NO_PROXY="+os.Getenv("NO_PROXY")+",10.99.0.0/16,127.0.0.1")
	cmd.SysProcAttr = process.DieWithThread()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		log.Close()
		if out, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the log of Prometheus:\n%s", out)
		}
	})
	p := &prometheus{t, "http://" + address}
	livetest.Until(t, "an answer of Prometheus", func() error { _, err := p.query("vector(1)"); return err })
	return p
}

// credentials writes the kubeconfig and its parts into dir, and returns host:port of the API server.
func credentials(t *testing.T, dir string) (server string) {
	t.Helper()
	data, err := os.ReadFile(kube.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     string `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Certificate string `json:"client-certificate-data"`
				Key         string `json:"client-key-data"`
			}
		}
	}
	if err := yaml.Unmarshal(data, &config); err != nil || len(config.Clusters) != 1 || len(config.Users) != 1 {
		t.Fatalf("the kubeconfig: %v", err)
	}
	c, u := config.Clusters[0].Cluster, config.Users[0].User
	files := map[string]string{"ca.crt": c.CA, "client.crt": u.Certificate, "client.key": u.Key,
		"kubeconfig": base64.StdEncoding.EncodeToString(data)}
	for name, encoded := range files {
		content, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return strings.TrimPrefix(c.Server, "https://")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// sample is a series with its last value.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (s sample) String() string { return fmt.Sprint(s.Metric, " ", s.Value[1]) }

// query returns the result of an expression.
func (p *prometheus) query(expr string) ([]sample, error) {
	resp, err := http.PostForm(p.url+"/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []sample }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}

// firing returns the names of the alerts that fire.
func (p *prometheus) firing() (map[string]bool, error) {
	samples, err := p.query(`group by (alertname) (ALERTS{alertstate="firing"})`)
	names := map[string]bool{}
	for _, s := range samples {
		names[s.Metric["alertname"]] = true
	}
	return names, err
}

// fires waits until all alerts fire, or none of them.
func (p *prometheus) fires(want bool, alerts ...string) {
	p.Helper()
	start := time.Now()
	livetest.Until(p.T, fmt.Sprintf("firing = %v of %v", want, alerts), func() error {
		names, err := p.firing()
		for _, a := range alerts {
			if err == nil && names[a] != want {
				err = fmt.Errorf("%s: %v; there are %v", a, names[a], names)
			}
		}
		return err
	})
	p.Logf("%5.1f s: firing = %v: %s", time.Since(start).Seconds(), want, strings.Join(alerts, ", "))
}
