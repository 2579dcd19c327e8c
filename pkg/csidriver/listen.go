package csidriver

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/causeway-csi/causeway/internal/connlimit"
	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/pkg/driver"
)

// listeners are the endpoints of a process. The endpoints on the network have limits, so that their
// clients leave enough files and memory for the calls on csi.
type listeners struct {
	csi        net.Listener
	peer, http *connlimit.Listener // nil without their flags
}

// listen opens the endpoints. The CSI endpoint comes last: if a port is in use, the socket of the
// process that has the port is not replaced.
func listen(o options) (l listeners, err error) {
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.peer, err = listenTCP("peer-listen", o.peers.listen, peertls.Limit); err != nil {
		return l, err
	}
	if l.http, err = listenTCP("http-endpoint", o.httpEndpoint, connlimit.HTTP); err != nil {
		return l, err
	}
	l.csi, err = driver.Listen(o.endpoint, o.allowTCP)
	return l, err
}

// listenTCP opens the address of a flag with limits, if the flag is set.
func listenTCP(flag, address string, limit func(net.Listener) *connlimit.Listener) (*connlimit.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return limit(l), nil
}

// measure registers the metrics of the listeners. A registry can have them only once.
func (l listeners) measure(registry *prometheus.Registry) {
	for flag, listener := range map[string]*connlimit.Listener{"peer-listen": l.peer, "http-endpoint": l.http} {
		if listener == nil {
			continue
		}
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "causeway_dropped_connections_total",
			Help: "Connections that were closed in favor of newer connections, because too many open " +
				"connections had sent nothing or had not authenticated.",
			ConstLabels: prometheus.Labels{"listener": flag}, // Prometheus sets endpoint to the scraped port
		}, func() float64 { return float64(listener.Dropped()) }))
	}
}

// warn logs floods of connections to the HTTP endpoint. On the port for the router, peertls reports
// rejected handshakes instead.
func (l listeners) warn(log *slog.Logger) {
	if l.http != nil {
		l.http.Warn = func(source netip.Prefix) {
			log.Warn("too many connections are open: some are dropped", "endpoint", "http-endpoint", "source",
				source.String(), "dropped", l.http.Dropped())
		}
	}
}

func (l listeners) close() {
	if l.csi != nil {
		l.csi.Close()
	}
	for _, listener := range []*connlimit.Listener{l.peer, l.http} {
		if listener != nil {
			listener.Close()
		}
	}
}
