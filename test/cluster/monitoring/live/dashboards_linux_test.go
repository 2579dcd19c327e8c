package live

import (
	"fmt"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/monitoring"
)

// TestDashboards runs each query of the dashboards while a volume is made, used, copied and deleted:
// each has a result.
func TestDashboards(t *testing.T) {
	queries, err := monitoring.Queries()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t)
	p.well()
	p.volume("shown")
	p.must(kube.Apply(p.anyhow(), `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: shown}
spec:
  volumeSnapshotClassName: causeway-hostpath
  source: {persistentVolumeClaimName: shown}
`))
	p.must2(p.try("wait", "volumesnapshot/shown", "--for=jsonpath={.status.readyToUse}=true", "--timeout=60s"))
	defer func() {
		p.must2(p.try("delete", "volumesnapshot", "shown"))
		p.remove("shown")
	}()
	time.Sleep(10 * time.Second) // two scrapes after the calls, for rates
	for _, q := range queries {
		livetest.Until(t, q.Dashboard+": "+q.Panel, func() error {
			samples, err := p.query(q.Expr)
			if err == nil && len(samples) == 0 {
				err = fmt.Errorf("no result of %s", q.Expr)
			}
			if err == nil {
				t.Logf("%s: %s: %d series, such as %v", q.Dashboard, q.Panel, len(samples), samples[0])
			}
			return err
		})
	}
}
