package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

// Query is a query of a panel.
type Query struct {
	Dashboard, Panel string
	Expr             string // with values for the variables of the dashboard
}

// panel is a panel of a dashboard. A row can have panels.
type panel struct {
	Type, Title string
	Targets     []struct{ Expr string }
	Panels      []panel
}

// variables has values for the variables of the dashboards, and for those of Grafana.
var variables = strings.NewReplacer("$namespace", ".*", "$__rate_interval", "1m")

// Queries returns the queries of all dashboards of the chart. Errors: a dashboard or a panel
// without a title or without a query; a variable without a value.
func Queries() (all []Query, err error) {
	files, err := filepath.Glob(filepath.Join(chart.Directory(), "files", "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("the chart has %d dashboards: %w", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var dashboard struct {
			UID, Title string
			Panels     []panel
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if dashboard.UID == "" || dashboard.Title == "" {
			return nil, fmt.Errorf("%s has no uid or no title", file)
		}
		for _, p := range dashboard.Panels {
			queries, err := p.queries(dashboard.Title)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			all = append(all, queries...)
		}
	}
	return all, nil
}

func (p panel) queries(dashboard string) (all []Query, err error) {
	if p.Title == "" || p.Type != "row" && len(p.Targets) == 0 || len(p.Panels) > 0 {
		return nil, fmt.Errorf("the panel %q of type %s has no title, no query, or panels", p.Title, p.Type)
	}
	for _, t := range p.Targets {
		expr := variables.Replace(t.Expr)
		if strings.Contains(expr, "$") || expr == "" {
			return nil, fmt.Errorf("the panel %q has the query %q", p.Title, t.Expr)
		}
		all = append(all, Query{dashboard, p.Title, expr})
	}
	return all, nil
}
