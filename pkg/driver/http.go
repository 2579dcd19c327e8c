package driver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// HTTP returns the handler for --http-endpoint. /metrics is for Prometheus; metrics that cannot be
// collected are left out, logged, and counted in promhttp_metric_handler_errors_total. /healthz
// succeeds while the process runs. /readyz returns the text of ready, or 503 with its error.
func HTTP(log *slog.Logger, registry *prometheus.Registry,
	ready func(context.Context) (string, error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError),
		Registry:            registry,
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second, // the metrics of a backend may wait for a stalled disk
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		text, err := ready(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, text)
	})
	return mux
}
