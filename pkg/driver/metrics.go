package driver

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"sync/atomic"
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
	running := newRunningCalls()
	for _, c := range []prometheus.Collector{calls, seconds, running} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start, method := time.Now(), path.Base(info.FullMethod)
		defer running.end(running.begin(method, start))
		resp, err := handler(ctx, req)
		seconds.WithLabelValues(method).Observe(time.Since(start).Seconds())
		calls.WithLabelValues(method, status.Code(err).String()).Inc()
		return resp, err
	}, nil
}

// runningCalls is a prometheus.Collector for the calls in progress.
type runningCalls struct {
	number, oldest *prometheus.Desc

	mu    sync.Mutex
	next  uint64
	calls map[uint64]runningCall // by a number of their own
}

type runningCall struct {
	method string
	start  time.Time
}

func newRunningCalls() *runningCalls {
	return &runningCalls{
		number: prometheus.NewDesc(metricPrefix+"csi_calls_in_flight", "CSI calls in progress.", nil, nil),
		oldest: prometheus.NewDesc(metricPrefix+"csi_oldest_call_seconds",
			"Age of the oldest CSI call in progress, by method, in seconds.", []string{"method"}, nil),
		calls: map[uint64]runningCall{},
	}
}

// begin adds a call, and returns its number for end.
func (r *runningCalls) begin(method string, start time.Time) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	r.calls[r.next] = runningCall{method, start}
	return r.next
}

func (r *runningCalls) end(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, number)
}

func (r *runningCalls) Describe(out chan<- *prometheus.Desc) { out <- r.number; out <- r.oldest }

func (r *runningCalls) Collect(out chan<- prometheus.Metric) {
	number, oldest := r.state()
	out <- prometheus.MustNewConstMetric(r.number, prometheus.GaugeValue, float64(number))
	for method, start := range oldest {
		out <- prometheus.MustNewConstMetric(r.oldest, prometheus.GaugeValue, time.Since(start).Seconds(), method)
	}
}

// state returns the number of calls, and the start of the oldest call of each method.
func (r *runningCalls) state() (number int, oldest map[string]time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest = map[string]time.Time{}
	for _, c := range r.calls {
		if first, ok := oldest[c.method]; !ok || c.start.Before(first) {
			oldest[c.method] = c.start
		}
	}
	return len(r.calls), oldest
}

var (
	readyDesc = prometheus.NewDesc(metricPrefix+"ready",
		"1 while the driver is ready, as /readyz reports it, otherwise 0. It is checked every 10 s.", nil, nil)
	conditionsDesc = prometheus.NewDesc(metricPrefix+"storage_conditions",
		"1 for each condition of the storage, by reason. It is checked every 10 s.", []string{"reason"}, nil)
)

// stateMetrics is a prometheus.Collector for the last state that Driver.watch has seen: to collect
// it touches no storage.
type stateMetrics struct{ last *atomic.Pointer[state] }

func (m stateMetrics) Describe(out chan<- *prometheus.Desc) { out <- readyDesc; out <- conditionsDesc }

func (m stateMetrics) Collect(out chan<- prometheus.Metric) {
	s, value := m.last.Load(), 0.0
	if s == nil {
		s = &state{}
	}
	if s.serves() {
		value = 1
	}
	out <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, value)
	for _, reason := range s.reasons() {
		out <- prometheus.MustNewConstMetric(conditionsDesc, prometheus.GaugeValue, 1, reason)
	}
}

// backendMetrics is a prometheus.Collector for the metrics of a backend. A metric that is invalid, or
// has the name of a metric of the driver, is an error of the collection: it stops neither the driver
// nor the other metrics.
type backendMetrics struct {
	backend.MetricsSource
	registry *prometheus.Registry

	mu    sync.Mutex
	names map[string]error // by the name of a metric: nil if no other collector has it
}

// Describe describes nothing: the registry checks each metric when it is collected.
func (*backendMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect runs in a goroutine of the registry, which does not recover from a panic.
func (m *backendMetrics) Collect(out chan<- prometheus.Metric) {
	metrics, err := guard.Value(func() ([]backend.Metric, error) { return m.Metrics(), nil })
	if err != nil {
		out <- invalid(err)
		return
	}
	for _, v := range metrics {
		kind := prometheus.GaugeValue
		if v.Counter {
			kind = prometheus.CounterValue
		}
		desc, values := described(v)
		metric, err := prometheus.NewConstMetric(desc, kind, v.Value, values...)
		if err == nil {
			err = m.checkName(v.Name, desc)
		}
		if err != nil {
			metric = invalid(fmt.Errorf("metric %q of the backend: %w", v.Name, err))
		}
		out <- metric
	}
}

func invalid(err error) prometheus.Metric {
	return prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
}

// checkName returns an error if another collector has described a metric with this name.
func (m *backendMetrics) checkName(name string, desc *prometheus.Desc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err, known := m.names[name]
	if !known {
		p := probe{desc}
		if err = m.registry.Register(p); err == nil {
			m.registry.Unregister(p)
		}
		m.names[name] = err
	}
	return err
}

// probe is a prometheus.Collector without metrics.
type probe struct{ desc *prometheus.Desc }

func (p probe) Describe(out chan<- *prometheus.Desc) { out <- p.desc }
func (probe) Collect(chan<- prometheus.Metric)       {}

// described returns the description of a metric, and the values of its labels.
func described(m backend.Metric) (desc *prometheus.Desc, values []string) {
	names := slices.Sorted(maps.Keys(m.Labels))
	for _, n := range names {
		values = append(values, m.Labels[n])
	}
	return prometheus.NewDesc(metricPrefix+m.Name, m.Help, names, nil), values
}
