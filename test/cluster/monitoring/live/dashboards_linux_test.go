package live

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/internal/promtest"
	"github.com/causeway-csi/causeway/test/cluster/monitoring"
)

// empty are the panels that have no series on a healthy cluster without shares. The faults give
// them some: TestFaults prints those that it has seen.
var empty = []string{"Conditions of the storage", "Available on shares", "Failed calls",
	"Calls that found their volume locked", "Age of the oldest call"}

// TestDashboards runs each recording rule, and each query of the dashboards, while volumes are
// made, used, copied and deleted: each has a result, except for the panels that are empty.
func TestDashboards(t *testing.T) {
	if testing.Short() {
		t.Skip("this needs a cluster")
	}
	queries, err := monitoring.Queries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range empty {
		if !slices.ContainsFunc(queries, func(q monitoring.Query) bool { return q.Panel == name }) {
			t.Errorf("there is no panel %q", name)
		}
	}
	for _, rule := range monitoring.Chart().Load(t) {
		if rule.Record != "" && rule.Record != "causeway:share_available:ratio" {
			queries = append(queries, monitoring.Query{Dashboard: "rules", Panel: rule.Record, Expr: rule.Record})
		}
	}
	p := start(t)
	p.well()
	for _, name := range []string{"first", "second"} { // a rate needs a counter that exists, and grows
		p.use(name)
		defer p.remove(name)
		p.scraped()
		p.scraped()
	}
	for _, q := range queries {
		await.NoError(t, q.Dashboard+": "+q.Panel+" has a result", func() error {
			samples, err := p.numbers(q.Expr)
			if err == nil && len(samples) == 0 {
				if slices.Contains(empty, q.Panel) {
					return nil
				}
				err = fmt.Errorf("no result of %s", q.Expr)
			}
			if err == nil {
				t.Logf("%s: %s: %d series, such as %v", q.Dashboard, q.Panel, len(samples), samples[0])
			}
			return err
		})
	}
}

// use makes a volume, and takes and deletes a snapshot of it.
func (p *prometheus) use(name string) {
	p.Helper()
	p.volume(name)
	p.must(kube.Apply(p.anyhow(), fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %[1]s}
spec:
  volumeSnapshotClassName: causeway-hostpath
  source: {persistentVolumeClaimName: %[1]s}
`, name)))
	p.must2(p.try("wait", "volumesnapshot/"+name, "--for=jsonpath={.status.readyToUse}=true", "--timeout=60s"))
	p.must2(p.try("delete", "volumesnapshot", name))
}

// scraped waits until Prometheus has scraped each target again.
func (p *prometheus) scraped() {
	p.Helper()
	again := fmt.Sprintf("min(timestamp(up)) > %.3f", float64(time.Now().UnixMilli())/1000)
	await.True(p, "Prometheus has scraped each target", func() bool {
		all, err := p.Query(again)
		return err == nil && len(all) > 0
	})
}

// numbers returns the results of a query, without those that are not a number: a quotient of zeros.
func (p *prometheus) numbers(query string) ([]promtest.Sample, error) {
	samples, err := p.Query(query)
	return slices.DeleteFunc(samples, func(s promtest.Sample) bool { return s.Value[1] == "NaN" }), err
}

// seePanels notes the panels that are empty without faults, and have results now.
func (s *scene) seePanels() {
	s.Helper()
	queries, err := monitoring.Queries()
	s.must(err)
	for _, q := range queries {
		if !slices.Contains(empty, q.Panel) {
			continue
		}
		if samples, err := s.numbers(q.Expr); err == nil && len(samples) > 0 {
			s.summary.panels[q.Panel] = true
		}
	}
}
