package driver

import (
	"context"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// metricPrefix starts the name of every metric of this driver.
const metricPrefix = "causeway_"

// callSeconds are the upper bounds of the buckets of the histogram, in seconds: from a mount to a
// copy.
var callSeconds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}

// countCalls registers the metrics of calls and returns the interceptor that updates them.
func countCalls(registry *prometheus.Registry) (grpc.UnaryServerInterceptor, error) {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: metricPrefix + "csi_calls_total", Help: "CSI calls that ended, by method and status code.",
	}, []string{"method", "code"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: metricPrefix + "csi_call_seconds", Help: "Duration of CSI calls, in seconds.", Buckets: callSeconds,
	}, []string{"method"})
	running := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: metricPrefix + "csi_calls_in_flight", Help: "CSI calls in progress.",
	})
	for _, c := range []prometheus.Collector{calls, seconds, running} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		running.Inc()
		defer running.Dec()
		start := time.Now()
		resp, err := handler(ctx, req)
		method := path.Base(info.FullMethod)
		seconds.WithLabelValues(method).Observe(time.Since(start).Seconds())
		calls.WithLabelValues(method, status.Code(err).String()).Inc()
		return resp, err
	}, nil
}

// backendMetrics is a prometheus.Collector for the metrics of a backend.
type backendMetrics struct{ backend.MetricsSource }

func (m backendMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, v := range m.Metrics() {
		desc, _ := described(v)
		out <- desc
	}
}

// Collect runs in a goroutine of the registry, which does not recover from a panic.
func (m backendMetrics) Collect(out chan<- prometheus.Metric) {
	metrics, err := guard.Value(func() ([]backend.Metric, error) { return m.Metrics(), nil })
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, v := range metrics {
		kind := prometheus.GaugeValue
		if v.Counter {
			kind = prometheus.CounterValue
		}
		desc, values := described(v)
		out <- prometheus.MustNewConstMetric(desc, kind, v.Value, values...)
	}
}

// described returns the description of a metric, and the values of its labels.
func described(m backend.Metric) (desc *prometheus.Desc, values []string) {
	names := slices.Sorted(maps.Keys(m.Labels))
	for _, n := range names {
		values = append(values, m.Labels[n])
	}
	return prometheus.NewDesc(metricPrefix+m.Name, m.Help, names, nil), values
}
