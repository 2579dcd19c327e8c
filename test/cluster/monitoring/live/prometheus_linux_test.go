package live

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/internal/promtest"
)

// prometheus is a running Prometheus.
type prometheus struct {
	*testing.T
	promtest.Server
}

// start starts Prometheus with the chart's rules, and ends it with the test. Alerts wait for 5 s
// instead of minutes; their expressions are unchanged.
func start(t *testing.T) *prometheus {
	t.Helper()
	config, err := os.ReadFile(filepath.Join("..", "testdata", "prometheus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(chart.Directory(), "files", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	quick := regexp.MustCompile(`(?m)^    (for|keep_firing_for): .*$`).ReplaceAllString(string(rules), "    $1: 5s")
	return &prometheus{t, promtest.Start(t, kube, "127.0.0.1", strings.Replace(string(config), "RULES", "KUBE/rules.yaml", 1),
		map[string]string{"rules.yaml": quick})}
}

// firing returns the names of the alerts that fire.
func (p *prometheus) firing() (map[string]bool, error) {
	samples, err := p.Query(`group by (alertname) (ALERTS{alertstate="firing"})`)
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
