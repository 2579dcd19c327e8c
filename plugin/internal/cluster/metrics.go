package cluster

import (
	"context"
	"fmt"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
)

// Metrics are the metrics of a process, by name.
type Metrics map[string]*dto.MetricFamily

// Sample is the value of a counter or a gauge.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// metrics parses an answer of /metrics.
func metrics(a Answer) (Metrics, error) {
	switch {
	case a.Err != nil:
		return nil, a.Err
	case a.Status != 200:
		return nil, fmt.Errorf("/metrics returned status %d: %.200q", a.Status, a.Body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(a.Body))
	if err != nil {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	return families, nil
}

// Samples returns the values of a counter or a gauge.
func (m Metrics) Samples(name string) []Sample {
	var all []Sample
	for _, one := range m[name].GetMetric() {
		s := Sample{Labels: map[string]string{}}
		for _, l := range one.GetLabel() {
			s.Labels[l.GetName()] = l.GetValue()
		}
		switch {
		case one.Gauge != nil:
			s.Value = one.GetGauge().GetValue()
		case one.Counter != nil:
			s.Value = one.GetCounter().GetValue()
		default:
			s.Value = one.GetUntyped().GetValue()
		}
		all = append(all, s)
	}
	return all
}

// Value returns the value of a counter or a gauge without labels, and whether it exists.
func (m Metrics) Value(name string) (float64, bool) {
	for _, s := range m.Samples(name) {
		return s.Value, true
	}
	return 0, false
}

// String returns a sample as the text format has it, for evidence.
func (s Sample) String() string {
	var labels []string
	for _, k := range sortedKeys(s.Labels) {
		labels = append(labels, fmt.Sprintf("%s=%q", k, s.Labels[k]))
	}
	if len(labels) == 0 {
		return fmt.Sprintf("%g", s.Value)
	}
	return fmt.Sprintf("{%s} %g", strings.Join(labels, ","), s.Value)
}

// MetricsOf returns the metrics of the driver in a pod.
func MetricsOf(ctx context.Context, c Client, p *corev1.Pod) (Metrics, error) {
	return metrics(Ask(ctx, c, p, driverPort, "/metrics"))
}
