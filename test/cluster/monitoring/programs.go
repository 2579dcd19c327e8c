// Package monitoring tests the chart's rules and dashboards with Prometheus.
package monitoring

import (
	"context"
	"io"
	"path/filepath"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/components"
)

// tags leave out the libraries of clouds: only the discovery of Kubernetes is used.
const tags = "remove_all_sd,enable_kubernetes_sd"

// Programs returns a directory with the named programs, prometheus or promtool, and builds those
// that are missing.
func Programs(ctx context.Context, log io.Writer, names ...string) (string, error) {
	all := map[string]components.Tool{}
	for _, name := range names {
		all[name] = components.Tool{Module: "prometheus", Tags: tags,
			Package: "github.com/prometheus/prometheus/cmd/" + name}
	}
	tools := filepath.Join(chart.Sources(), "test", "cluster", "monitoring", "tools")
	return components.BuildTools(ctx, log, tools, all)
}
