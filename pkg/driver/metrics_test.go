package driver

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// meter is a backend with metrics only.
type meter func() []backend.Metric

func (m meter) Metrics() []backend.Metric { return m() }

// TestMetricsOfABackendThatAreWrong are errors: they stop neither the driver nor the other metrics. The
// registry collects in goroutines of its own, in which a panic would end the process.
func TestMetricsOfABackendThatAreWrong(t *testing.T) {
	good := backend.Metric{Name: "volumes", Help: "Volumes.", Value: 3}
	for name, tc := range map[string]struct {
		wrong []backend.Metric // nil: a panic
		words string           // of the log
		good  bool             // the valid metric is there
	}{
		"a panic":                     {nil, "no numbers", false},
		"a name of the driver":        {[]backend.Metric{{Name: "ready", Help: "Another."}}, `metric \"ready\" of the backend`, true},
		"a name and help of it":       {[]backend.Metric{{Name: "csi_calls_in_flight", Help: "CSI calls in progress."}}, `csi_calls_in_flight`, true},
		"an invalid name of a label":  {[]backend.Metric{{Name: "x", Help: "X.", Labels: map[string]string{"__a": "b"}}}, "__a", true},
		"the same metric twice":       {[]backend.Metric{good}, "collected before with the same name and label values", true},
		"two kinds of one metric":     {[]backend.Metric{{Name: "volumes", Help: "Volumes.", Counter: true, Labels: map[string]string{"a": "b"}}}, "volumes", true},
		"a text that is not in UTF-8": {[]backend.Metric{{Name: "x", Help: "X.", Labels: map[string]string{"a": "\xff"}}}, "UTF-8", true},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			logger := slog.New(slog.NewTextHandler(&log, nil))
			registry := prometheus.NewRegistry()
			source := &backendMetrics{MetricsSource: meter(func() []backend.Metric {
				if tc.wrong == nil {
					panic("no numbers")
				}
				return append([]backend.Metric{good}, tc.wrong...)
			}), registry: registry, names: map[string]error{}}
			var last atomic.Pointer[state]
			for _, c := range []prometheus.Collector{source, stateMetrics{&last}, newRunningCalls()} {
				if err := registry.Register(c); err != nil {
					t.Fatal(err)
				}
			}
			handler := HTTP(logger, registry, func(context.Context) (string, error) { return "", nil })
			for range 2 {
				answer := httptest.NewRecorder()
				handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				text := answer.Body.String()
				for line, want := range map[string]bool{"causeway_ready 0\n": true, "causeway_csi_calls_in_flight 0\n": true,
					"causeway_volumes 3\n": tc.good} {
					if strings.Contains(text, line) != want {
						t.Errorf("status %d, %q is in the answer: %v\n%s", answer.Code, line, !want, text)
					}
				}
				if answer.Code != http.StatusOK || !strings.Contains(log.String(), tc.words) {
					t.Errorf("status %d, log: %s", answer.Code, log.String())
				}
			}
		})
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
