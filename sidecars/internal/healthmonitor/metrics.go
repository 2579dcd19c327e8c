package healthmonitor

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const prefix = "csi_sidecars_volume_health_"

// metrics are the metrics of the monitor.
type metrics struct {
	listFailures, getFailures *prometheus.CounterVec
	writeFailures, unknown    prometheus.Counter
	duration                  prometheus.Histogram
	last                      prometheus.Gauge
	sick                      *sick
}

func newMetrics(driver string) *metrics {
	with := prometheus.Labels{"driver_name": driver}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: prefix + name, Help: help, ConstLabels: with}
	}
	return &metrics{
		listFailures: prometheus.NewCounterVec(counter("list_failures_total",
			"Lists of volume health that failed, after which each volume is asked for."), []string{"grpc_status_code"}),
		getFailures: prometheus.NewCounterVec(counter("get_failures_total",
			"Single volumes for which the driver had no answer."), []string{"grpc_status_code"}),
		writeFailures: prometheus.NewCounter(counter("write_failures_total",
			"Claims whose status could not be written.")),
		unknown: prometheus.NewCounter(counter("unknown_conditions_total",
			"Conditions of a type that this monitor does not know.")),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "round_duration_seconds", Help: "How long it took to look at all volumes once.",
			ConstLabels: with,
			Buckets:     []float64{.01, .1, .5, 1, 5, 15, 60, 300, 1800},
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "last_round_timestamp_seconds",
			Help: "When all volumes were last looked at, in Unix time.", ConstLabels: with}),
		sick: newSick(with),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.listFailures, m.getFailures, m.writeFailures, m.unknown, m.duration, m.last, m.sick}
}

// round records the outcome of a round.
func (m *metrics) round(took time.Duration, end time.Time, memories map[types.UID]*memory) {
	m.duration.Observe(took.Seconds())
	m.last.Set(float64(end.UnixMilli()) / 1000)
	m.sick.set(memories)
}

// maxSeries bounds the claims with a series of their own: the failure of a large node must not
// overload Prometheus. The totals count all claims.
const maxSeries = 1000

// statusLabels are the values of the label "status". Abnormal is for a VolumeCondition, which has
// none of the other statuses.
var statusLabels = append(slices.Clone(severity), "Abnormal")

func statusLabel(c v1.VolumeHealthCondition) v1.VolumeHealthStatusType {
	if isVolumeCondition(c) {
		return "Abnormal"
	}
	return c.Status
}

// ill is a claim with a status, regardless of the number of reasons.
type ill struct {
	namespace, claim string
	status           v1.VolumeHealthStatusType
}

// sick collects the result of the last round at once: a scrape never sees a part of it.
type sick struct {
	total, one *prometheus.Desc

	mu     sync.Mutex
	totals map[v1.VolumeHealthStatusType]int // nil before the first round
	claims []ill
}

func newSick(with prometheus.Labels) *sick {
	return &sick{
		total: prometheus.NewDesc(prefix+"abnormal_volumes",
			"Volumes with this status, as the driver's controller side has them.", []string{"status"}, with),
		one: prometheus.NewDesc(prefix+"abnormal",
			"1 for each claim whose volume has this status; a claim that is well has no series.", []string{"namespace",
				"persistentvolumeclaim", "status"}, with),
	}
}

func (s *sick) Describe(to chan<- *prometheus.Desc) {
	to <- s.total
	to <- s.one
}

func (s *sick) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.totals == nil {
		return
	}
	for _, status := range statusLabels {
		to <- prometheus.MustNewConstMetric(s.total, prometheus.GaugeValue, float64(s.totals[status]), string(status))
	}
	for _, i := range s.claims {
		to <- prometheus.MustNewConstMetric(s.one, prometheus.GaugeValue, 1, i.namespace, i.claim, string(i.status))
	}
}

func (s *sick) set(memories map[types.UID]*memory) {
	totals, claims := map[v1.VolumeHealthStatusType]int{}, []ill(nil)
	for _, r := range memories {
		for _, status := range statusLabels {
			if slices.ContainsFunc(r.held, func(c v1.VolumeHealthCondition) bool { return statusLabel(c) == status }) {
				totals[status]++
				claims = append(claims, ill{r.claim.Namespace, r.claim.Name, status})
			}
		}
	}
	slices.SortFunc(claims, func(a, b ill) int { // so that the same claims have series in each round
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.claim, b.claim),
			cmp.Compare(a.status, b.status))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals, s.claims = totals, claims[:min(len(claims), maxSeries)]
}
