// Package promtest runs Prometheus beside a test cluster, which it reaches through the API server.
package promtest

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
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/monitoring"
	"github.com/causeway-csi/causeway/test/cluster/process"
)

// Server is a running Prometheus.
type Server struct{ URL string }

// Start starts Prometheus on an IP address of this machine, and ends it with the test. In config,
// KUBE/ becomes the directory of the credentials ca.crt, client.crt, client.key and kubeconfig, and
// of the files, and API_SERVER the address of the API server.
func Start(t *testing.T, k kubectl.Kubectl, ip, config string, files map[string]string) Server {
	t.Helper()
	bin, err := monitoring.Programs(t.Context(), os.Stderr, "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	dir, address := t.TempDir(), freeAddress(t, ip)
	server := credentials(t, k, dir)
	config = strings.NewReplacer("KUBE/", dir+"/", "API_SERVER", server).Replace(config)
	all := map[string]string{"prometheus.yaml": config}
	for name, content := range files {
		all[name] = content
	}
	for name, content := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, exec.CommandContext(t.Context(), filepath.Join(bin, "prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn"), dir)
	s := Server{"http://" + address}
	await.NoError(t, "Prometheus answers", func() error { _, err := s.Query("vector(1)"); return err })
	return s
}

// run starts a program in dir, and ends it with the test, which shows its log if it has failed.
func run(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
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
}

// credentials writes the kubeconfig and its parts into dir, and returns host:port of the API
// server.
func credentials(t *testing.T, k kubectl.Kubectl, dir string) (server string) {
	t.Helper()
	data, err := os.ReadFile(k.Kubeconfig())
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

func freeAddress(t *testing.T, ip string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Sample is a series with its last value.
type Sample struct {
	Metric map[string]string
	Value  [2]any
}

func (s Sample) String() string { return fmt.Sprint(s.Metric, " ", s.Value[1]) }

// direct has no proxy: a test's server is on this machine.
var direct = http.Client{Transport: &http.Transport{}}

// Query returns the result of an expression.
func (s Server) Query(expr string) ([]Sample, error) {
	resp, err := direct.PostForm(s.URL+"/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []Sample }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}
