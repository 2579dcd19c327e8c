package live

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/internal/promtest"
)

// prometheus is a running Prometheus.
type prometheus struct {
	*testing.T
	promtest.Server
	end time.Time // of a part of a step; zero: the deadline of the test
}

// Deadline returns the end of a wait that begins now. In a step this is half of the time that
// remains: the other half is for the waits that follow.
func (p *prometheus) Deadline() (time.Time, bool) {
	if p.end.IsZero() {
		return p.T.Deadline()
	}
	return time.Now().Add(time.Until(p.end) / 2), true
}

// shorter are times in expressions of alerts that would fire after ten minutes or more only.
var shorter = map[string]string{
	"(causeway_csi_oldest_call_seconds) > 900":     "(causeway_csi_oldest_call_seconds) > 20",   // CausewayCallStuck
	`(causeway_trash_entries{source!=""}[2h])`:     `(causeway_trash_entries{source!=""}[20s])`, // CausewayShareTrashStuck
	`causeway_trash_entries{source!=""} offset 2h`: `causeway_trash_entries{source!=""} offset 20s`,
	"causeway_router_silent_seconds > 600":         "causeway_router_silent_seconds > 20",    // CausewayNodesSilent
	"last_round_timestamp_seconds > 0) > 3600":     "last_round_timestamp_seconds > 0) > 30", // CausewayHealthNotChecked
}

// start starts Prometheus with the chart's rules, and ends it with the test. Alerts wait for 5 s
// instead of minutes; their expressions are unchanged, except for
// shorter.
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
	for from, to := range shorter {
		if !strings.Contains(quick, from) {
			t.Fatalf("%s is not in the rules", from)
		}
		quick = strings.ReplaceAll(quick, from, to)
	}
	text := strings.NewReplacer("RULES", "KUBE/rules.yaml", "names: [causeway]", "names: [causeway, "+second+"]").
		Replace(string(config))
	return &prometheus{T: t, Server: promtest.Start(t, kube, "127.0.0.1", text,
		map[string]string{"rules.yaml": quick})}
}

// firing returns the names of the alerts that fire, or have fired within a time.
func (p *prometheus) firing(within time.Duration) (map[string]bool, error) {
	samples, err := p.Query(fmt.Sprintf(`group by (alertname) (last_over_time(ALERTS{alertstate="firing"}[%.0fs]))`,
		max(within.Seconds(), 4)))
	names := map[string]bool{}
	for _, s := range samples {
		names[s.Metric["alertname"]] = true
	}
	return names, err
}

// fires waits until all alerts fire, or none of them, and reports whether it is so. An alert that
// fired and ended since a time counts, too: a call that hangs is given up.
func (p *prometheus) fires(want bool, since time.Time, alerts ...string) bool {
	p.Helper()
	start := time.Now()
	ok := await.Happens(p, fmt.Sprintf("firing = %v of %v", want, alerts), func() error {
		within := time.Duration(0)
		if want {
			within = time.Since(since)
		}
		names, err := p.firing(within)
		for _, a := range alerts {
			if err == nil && names[a] != want {
				err = fmt.Errorf("%s: %v; there are %v", a, names[a], names)
			}
		}
		return err
	})
	if ok {
		p.Logf("%5.1f s: firing = %v: %s", time.Since(start).Seconds(), want, strings.Join(alerts, ", "))
	}
	return ok
}
