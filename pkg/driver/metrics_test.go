package driver

import (
	"strings"
	"testing"
	"time"

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

// TestTheOldestCall: calls that hang have an age while they hang, and none afterwards.
func TestTheOldestCall(t *testing.T) {
	r := newRunningCalls()
	now := time.Now()
	first := r.begin("CreateVolume", now.Add(-time.Hour))
	second := r.begin("CreateVolume", now.Add(-time.Minute))
	third := r.begin("DeleteVolume", now)
	want := func(number int, ages map[string]time.Duration) {
		t.Helper()
		got, oldest := r.state()
		if got != number || len(oldest) != len(ages) {
			t.Errorf("state = %d, %v, want %d, %v", got, oldest, number, ages)
		}
		for method, age := range ages {
			if oldest[method] != now.Add(-age) {
				t.Errorf("the oldest %s began at %v, want %v ago", method, oldest[method], age)
			}
		}
	}
	want(3, map[string]time.Duration{"CreateVolume": time.Hour, "DeleteVolume": 0})
	r.end(third)
	r.end(first)
	want(1, map[string]time.Duration{"CreateVolume": time.Minute})
	registry := prometheus.NewRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		value := f.GetMetric()[0].GetGauge().GetValue()
		switch f.GetName() {
		case "causeway_csi_calls_in_flight":
			if value != 1 {
				t.Errorf("%v calls are in flight", value)
			}
		case "causeway_csi_oldest_call_seconds":
			if value < 60 || value > 600 {
				t.Errorf("the oldest call has %v s", value)
			}
		}
	}
	r.end(second)
	want(0, nil)
}
