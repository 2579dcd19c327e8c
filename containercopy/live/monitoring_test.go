package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestMonitoring: the chart has a monitor if the values demand it, which selects the agents and
// their port, and the rules of the file in a cluster with their CRD.
func TestMonitoring(t *testing.T) {
	const rule, monitor = "PrometheusRule/copy-causeway-copy", "PodMonitor/copy-causeway-copy-agent"
	if all := render(t); all[rule] != nil || all[monitor] != nil {
		t.Error("the default values have a rule or a monitor")
	}
	const crd = "--api-versions=monitoring.coreos.com/v1/PrometheusRule"
	if all := render(t, crd, "--set=monitoring.rules.create=false"); all[rule] != nil {
		t.Error("there are rules although the values say false")
	}
	all := render(t, crd, "--set=monitoring.kind=PodMonitor,monitoring.labels.release=p")
	text, err := os.ReadFile(filepath.Join(folder(), "chart", "files", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(all[rule]["spec"], want) || at[string](all[rule], "metadata", "labels", "release") != "p" {
		t.Errorf("the rules are %v", all[rule])
	}
	agent := all["DaemonSet/copy-causeway-copy-agent"]
	selector := at[map[string]any](all[monitor], "spec", "selector", "matchLabels")
	if len(selector) == 0 || !reflect.DeepEqual(selector, at[map[string]any](agent, "spec", "selector", "matchLabels")) {
		t.Errorf("the monitor selects %v", selector)
	}
	port := at[string](all[monitor], "spec", "podMetricsEndpoints", 0, "port")
	for _, p := range at[[]any](agent, "spec", "template", "spec", "containers", 0, "ports") {
		if at[string](p, "name") == port {
			return
		}
	}
	t.Errorf("the agent has no port %q", port)
}
