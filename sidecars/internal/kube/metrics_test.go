package kube

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

func TestMetricsGetTheirControllerWhereOneIsKnown(t *testing.T) {
	depth := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "depth", Help: "d"}, []string{"name", "zone"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(depth)
	depth.WithLabelValues("claims", "z").Set(1)
	depth.WithLabelValues("nobody's", "z").Set(2)
	of := func(family string, m *dto.Metric) string {
		if family == "depth" && value(m, "name") == "claims" && value(m, "size") == "" {
			return "provisioner"
		}
		return ""
	}
	const head = "# HELP depth d\n# TYPE depth gauge\n"
	const one = head + `depth{name="nobody's",zone="z"} 2
depth{controller="provisioner",name="claims",zone="z"} 1
`
	for range 2 { // it does not add up
		if err := testutil.GatherAndCompare(prometheus.Gatherers{Labeled{registry, of}},
			strings.NewReader(one)); err != nil {
			t.Error(err)
		}
	}
	const all = head + `depth{controller="x",name="claims",zone="z"} 1
depth{controller="x",name="nobody's",zone="z"} 2
`
	if err := testutil.GatherAndCompare(Always(registry, "x"), strings.NewReader(all)); err != nil {
		t.Error(err)
	}
}
