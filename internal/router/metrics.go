package router

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/guard"
)

// metrics are what is counted of calls, by node.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "causeway_router_calls_total", Help: "Calls that the router made of a node, by node and status code.",
		}, []string{"node", "code"}),
		seconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "causeway_router_call_seconds_total", Help: "How long the router waited for a node's answers, all together.",
		}, []string{"node"}),
	}
}

func (m *metrics) count(node string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(node, code.String()).Inc()
	m.seconds.WithLabelValues(node).Add(took.Seconds())
}

// forget drops what is counted of a node that isn't at its address any more. If it is at another one, it begins anew.
func (m *metrics) forget(node string) {
	m.calls.DeletePartialMatch(prometheus.Labels{"node": node})
	m.seconds.DeletePartialMatch(prometheus.Labels{"node": node})
}

var (
	upDesc = prometheus.NewDesc("causeway_router_node_up",
		"1 for a node that answers, 0 for one that has answered at this address and doesn't now, or that more than one says it is.", []string{"node", "address"}, nil)
	peersDesc = prometheus.NewDesc("causeway_router_peers",
		"Addresses at which there is a node, by state: it answers, is silent (nobody, or nobody who can be believed), or is there twice.", []string{"state"}, nil)
	discoveryDesc = prometheus.NewDesc("causeway_router_discovery_up", "1 if the last look for the addresses of nodes worked.", nil, nil)
)

// collector is a prometheus.Collector of what a router knows.
type collector struct{ *Router }

func (c collector) Describe(out chan<- *prometheus.Desc) {
	c.metrics.calls.Describe(out)
	c.metrics.seconds.Describe(out)
	out <- upDesc
	out <- peersDesc
	out <- discoveryDesc
}

// Collect runs in a goroutine of the registry, which catches no panic.
func (c collector) Collect(out chan<- prometheus.Metric) {
	if err := guard.Do(func() error { c.collect(out); return nil }); err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
}

func (c collector) collect(out chan<- prometheus.Metric) {
	c.metrics.calls.Collect(out)
	c.metrics.seconds.Collect(out)
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view.Load()
	up := 0
	for _, p := range c.places {
		switch {
		case p.node != nil && v.byDigest[p.node.key()] == p.node:
			up++
			gauge(upDesc, 1, p.last, p.address)
		case p.last != "":
			gauge(upDesc, 0, p.last, p.address)
		}
	}
	twice := 0
	for _, where := range v.twice {
		twice += len(where)
	}
	gauge(peersDesc, up, "answers")
	gauge(peersDesc, len(v.silent), "silent")
	gauge(peersDesc, twice, "twice")
	looked := 1
	if v.looked != nil || !v.known {
		looked = 0
	}
	gauge(discoveryDesc, looked)
}

// maxShown is how many nodes Ready names.
const maxShown = 20

// Ready says how many nodes answer, and which don't. That some don't is no error: those that do are served.
func (r *Router) Ready(context.Context) (string, error) {
	v := r.view.Load()
	if !v.known {
		return "ok: " + status.Convert(v.all()).Message(), nil
	}
	total := len(v.nodes) + len(v.silent)
	for _, where := range v.twice {
		total += len(where)
	}
	lines := []string{fmt.Sprintf("ok: %d of %d nodes answer", len(v.nodes), total)}
	if v.looked != nil {
		lines = append(lines, fmt.Sprintf("addresses are old: %v", v.looked))
	}
	for i, p := range v.silent {
		if i == maxShown {
			lines = append(lines, fmt.Sprintf("and %d more", len(v.silent)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s: %v", p, p.why))
	}
	for _, where := range v.twice {
		lines = append(lines, "more than one says that it is the same node: "+strings.Join(where, ", "))
	}
	return strings.Join(lines, "\n"), nil
}
