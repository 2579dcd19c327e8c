package connlimit

import (
	"net"
	"net/http"
	"time"
)

// Limits of an HTTP endpoint, which serves a Prometheus, the kubelet's probes and a person's
// browser.
const (
	maxHTTP     = 256              // connections
	headerLimit = 5 * time.Second  // for the headers of a request
	readLimit   = 10 * time.Second // for a request; none has a body
	writeLimit  = time.Minute      // for its answer, of which a profile of 30 s takes the longest
	idleLimit   = 2 * time.Minute  // between two requests: twice the interval at which Prometheus asks by default
	maxHeaders  = 16 << 10         // bytes
)

// HTTP returns l with a limit on its connections, for ServerOf.
func HTTP(l net.Listener) *Listener {
	return New(l, Limits{Waiting: Share(maxHTTP)})
}

// ServerOf returns a server for the connections of HTTP. It bounds the time and the size of
// requests, and tells the listener which connections are idle.
func ServerOf(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerLimit, ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit,
		MaxHeaderBytes: maxHeaders,
		ConnState: func(conn net.Conn, state http.ConnState) {
			switch c, ok := conn.(*Conn); {
			case !ok:
			case state == http.StateIdle:
				c.wait()
			case state == http.StateActive: // the headers of a request are there
				Advance(c)
			}
		},
	}
}
