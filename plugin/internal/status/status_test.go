package status

import (
	"context"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// text returns the status of a cluster as text, by lines.
func text(t *testing.T, c *fake.Cluster) []string {
	t.Helper()
	v, err := cluster.Gather(context.Background(), c.Clients().Client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Of(v).Text(&out); err != nil {
		t.Fatal(err)
	}
	return strings.Split(out.String(), "\n")
}

// TestTheSizesOfALostRootAreUnknown: the driver reports 0 bytes then. A full disk has a size.
func TestTheSizesOfALostRootAreUnknown(t *testing.T) {
	c := fake.Healthy()
	const lost, full = "causeway-node-1", "causeway-node-2"
	for _, m := range []string{"size", "free", "available"} {
		c.Metric(lost, "causeway_storage_"+m+"_bytes 0")
		if m != "size" {
			c.Metric(full, "causeway_storage_"+m+"_bytes 0")
		}
	}
	want := map[string][]string{lost: {"-", "-", "-"}, full: {"7629Mi", "0", "0"}}
	for _, line := range text(t, c) {
		cells := strings.Fields(line)
		if len(cells) < 11 || want[cells[0]] == nil {
			continue
		}
		if got := strings.Join(cells[7:10], " "); got != strings.Join(want[cells[0]], " ") {
			t.Errorf("%s: size, free and available are %s, want %s", cells[0], got, want[cells[0]])
		}
		delete(want, cells[0])
	}
	if len(want) > 0 {
		t.Errorf("no lines of %v", want)
	}
}
