package driver

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// HTTP returns what --http-endpoint serves: /metrics for Prometheus, /healthz (the process runs) and /readyz (it
// serves calls; if not, the answer is 503 and says why).
func (d *Driver) HTTP() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.cfg.Registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second, // the backend's metrics may hang in its disk
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		switch ready, err := d.prober.probe(r.Context()); {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case !ready:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		default:
			fmt.Fprintln(w, "ok")
		}
	})
	return mux
}
