package kube

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
	// adds client-go's election metrics to the registry
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // and those of its requests
	_ "k8s.io/component-base/metrics/prometheus/workqueue"  // and those of work queues

	"github.com/causeway-csi/causeway/sidecars/internal/sidecar"
)

// measure adds the metrics of upstream's libraries to the port: queues, requests, elections, the Go
// runtime, the process. Queues get the label "controller".
func measure(s *sidecar.Server) {
	s.Measure(Labeled{legacyregistry.DefaultGatherer, func(family string, m *dto.Metric) string {
		switch {
		case strings.HasPrefix(family, "workqueue_"):
			return sidecar.OfQueue(value(m, "name"))
		case strings.HasPrefix(family, "csistoragecapacit"):
			return "provisioner"
		}
		return ""
	}})
}

// Labeled adds the label "controller" to the metrics of a gatherer if Of returns one.
type Labeled struct {
	prometheus.Gatherer
	Of func(family string, m *dto.Metric) string
}

// Gather implements prometheus.Gatherer.
func (l Labeled) Gather() ([]*dto.MetricFamily, error) {
	families, err := l.Gatherer.Gather()
	for _, f := range families {
		for _, m := range f.Metric {
			if who := l.Of(f.GetName(), m); who != "" {
				name := "controller"
				m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &who})
				slices.SortFunc(m.Label, func(a,
					b *dto.LabelPair) int {
					return strings.Compare(a.GetName(), b.GetName())
				})
			}
		}
	}
	return families, err
}

func value(m *dto.Metric, label string) string {
	for _, l := range m.Label {
		if l.GetName() == label {
			return l.GetValue()
		}
	}
	return ""
}
