package live

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/monitoring"
)

// empty are the panels that have no series on a healthy cluster without shares.
var empty = []string{"Conditions of the storage", "Available on shares", "Failed calls",
	"Calls that found their volume locked", "Age of the oldest call"}

// TestDashboards runs each recording rule, and each query of the dashboards, while volumes are made,
// used, copied and deleted: each has a result, except for the panels that are empty.
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
		time.Sleep(5 * time.Second) // two scrapes
	}
	for _, q := range queries {
		livetest.Until(t, q.Dashboard+": "+q.Panel, func() error {
			samples, err := p.Query(q.Expr)
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
