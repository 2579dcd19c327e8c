package driver

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// meter panics from its second call on: the first call is for its registration.
type meter struct{ answers int }

func (m *meter) Metrics() []backend.Metric {
	if m.answers++; m.answers > 1 {
		panic("no numbers")
	}
	return []backend.Metric{{Name: "volumes", Help: "Volumes."}}
}

// The registry collects in goroutines of its own, in which a panic would end the process.
func TestAPanicInABackendsMetricsIsAnError(t *testing.T) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(backendMetrics{new(meter)}); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Gather(); err == nil || !strings.Contains(err.Error(), "no numbers") {
		t.Errorf("Gather = %v, want the panic", err)
	}
}
