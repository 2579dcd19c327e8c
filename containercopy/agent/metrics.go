package agent

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/causeway-csi/causeway/containercopy/quota"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Metrics are those of an agent.
type Metrics struct {
	operations *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
}

// NewMetrics registers the metrics of an agent.
func NewMetrics(r prometheus.Registerer, slots *quota.Slots) *Metrics {
	m := &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "container_copy_operations_total",
			Help: "Copies that have ended, by direction (from, to) and result: ok, a gRPC code, or canceled by the " +
				"client or with its connection."},
			[]string{"direction", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "container_copy_bytes_total",
			Help: "Bytes of the tar streams of copies, by direction."}, []string{"direction"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "container_copy_duration_seconds",
			Help:    "Time from the call to the end of a copy, by direction.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 10)}, []string{"direction"}),
	}
	r.MustRegister(m.operations, m.bytes, m.seconds)
	for name, value := range map[string]func(quota.State) int{
		"container_copy_in_flight":     func(s quota.State) int { return s.Copies },
		"container_copy_stuck_workers": func(s quota.State) int { return s.Stuck },
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help[name]},
			func() float64 { return float64(value(slots.State())) }))
	}
	for _, reason := range []quota.Reason{quota.Pod, quota.Node} {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "container_copy_rejected_total",
			Help:        "Copies over a limit: of the pod, or of the node.",
			ConstLabels: prometheus.Labels{"reason": string(reason)}},
			func() float64 { return float64(slots.State().Rejected[reason]) }))
	}
	return m
}

var help = map[string]string{
	"container_copy_in_flight":     "Copies that have a slot.",
	"container_copy_stuck_workers": "Workers that have outlived their copy: they remove it, or wait for a filesystem.",
}

// Finished counts a copy.
func (m *Metrics) Finished(r Report) {
	direction := "to"
	if r.From {
		direction = "from"
	}
	m.operations.WithLabelValues(direction, resultOf(r.Err)).Inc()
	m.bytes.WithLabelValues(direction).Add(float64(r.Bytes))
	m.seconds.WithLabelValues(direction).Observe(r.Seconds)
}

// resultOf returns the label of the result of a copy: one of a few.
func resultOf(err error) string {
	var f *wire.Failure
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &f):
		return known(f.Code)
	case errors.Is(err, stream.ErrClient), errors.Is(err, context.Canceled):
		return "canceled"
	}
	if code := codeOf(err); code != codes.Internal {
		return string(nameOf(code))
	}
	return known(stream.CodeOf(err))
}

// known returns a code as it is, or INTERNAL for a code that a worker has invented.
func known(code wire.Code) string {
	for _, name := range names {
		if name == code {
			return string(name)
		}
	}
	return string(wire.Internal)
}
