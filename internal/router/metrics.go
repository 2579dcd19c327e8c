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

// metrics count the calls of each node.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "causeway_router_calls_total", Help: "Calls from the router to a node, by node and status code.",
		}, []string{"node", "code"}),
		seconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "causeway_router_call_seconds_total", Help: "Total time that the router waited for the answers of " +
				"a node, in seconds.",
		}, []string{"node"}),
	}
}

func (m *metrics) count(node string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(node, code.String()).Inc()
	m.seconds.WithLabelValues(node).Add(took.Seconds())
}

// forget drops the counters of a node that lost its address. At another address they begin anew.
func (m *metrics) forget(node string) {
	m.calls.DeletePartialMatch(prometheus.Labels{"node": node})
	m.seconds.DeletePartialMatch(prometheus.Labels{"node": node})
}

var (
	upDesc = prometheus.NewDesc("causeway_router_node_up",
		"1 for a node that answers; 0 for a node that answered at this address and does not now, or that answers at "+
			"several addresses.", []string{"node", "address"}, nil)
	peersDesc = prometheus.NewDesc("causeway_router_peers",
		"Addresses of nodes, by state: answers; silent (no answer, or the router rejects the identity); gone (the "+
			"node lost its address less than 5 minutes ago); twice (several addresses report the same node).",
		[]string{"state"}, nil)
	silentDesc = prometheus.NewDesc("causeway_router_silent_seconds",
		"Longest time for which a node that has an address does not answer, in seconds; 0 without such a node.",
		nil, nil)
	discoveryDesc = prometheus.NewDesc("causeway_router_discovery_up",
		"1 if the last lookup of the nodes' addresses succeeded.", nil, nil)
)

// collector is a prometheus.Collector of a router.
type collector struct{ *Router }

func (c collector) Describe(out chan<- *prometheus.Desc) {
	c.metrics.calls.Describe(out)
	c.metrics.seconds.Describe(out)
	out <- upDesc
	out <- peersDesc
	out <- silentDesc
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
	measure := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge := func(desc *prometheus.Desc, value int, labels ...string) { measure(desc, float64(value), labels...) }
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view.Load()
	up, longest := 0, time.Duration(0)
	for _, e := range c.endpoints {
		if e.node == nil {
			longest = max(longest, time.Since(e.since))
		}
		switch {
		case e.node != nil && v.byDigest[e.node.key()] == e.node:
			up++
			gauge(upDesc, 1, e.last, e.address)
		case e.last != "":
			gauge(upDesc, 0, e.last, e.address)
		}
	}
	twice := 0
	for _, where := range v.twice {
		twice += len(where)
	}
	gauge(peersDesc, up, "answers")
	gone := 0
	for _, a := range v.silent {
		if a.gone() {
			gone++
		}
	}
	gauge(peersDesc, len(v.silent)-gone, "silent")
	gauge(peersDesc, gone, "gone")
	gauge(peersDesc, twice, "twice")
	measure(silentDesc, longest.Seconds())
	discovered := 1
	if v.lookupErr != nil || !v.known {
		discovered = 0
	}
	gauge(discoveryDesc, discovered)
}

// maxShown is the largest number of nodes that Ready names.
const maxShown = 20

// Ready returns the number of nodes that answer, and a line for each silent node, first of nodes
// that have an address. Silent nodes are no error: the others are served.
func (r *Router) Ready(context.Context) (string, error) {
	v := r.view.Load()
	if !v.known {
		return "ok: " + status.Convert(v.requireAll()).Message(), nil
	}
	total := len(v.nodes) + len(v.silent)
	for _, where := range v.twice {
		total += len(where)
	}
	lines := []string{fmt.Sprintf("ok: %d of %d nodes answer", len(v.nodes), total)}
	if v.lookupErr != nil {
		lines = append(lines, fmt.Sprintf("addresses are old: %v", v.lookupErr))
	}
	for i, p := range v.silent {
		if i == maxShown {
			lines = append(lines, fmt.Sprintf("and %d more", len(v.silent)-i))
			break
		}
		lines = append(lines, strings.ReplaceAll(fmt.Sprintf("%s: %v", p, p.err), "\n", "; "))
	}
	for _, where := range v.twice {
		lines = append(lines, "several addresses report the same node: "+strings.Join(where, ", "))
	}
	return strings.Join(lines, "\n"), nil
}
