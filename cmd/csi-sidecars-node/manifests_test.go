package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

func TestTheManifestsCommandLineIsRead(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "linux", "node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var d apps.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &d); err != nil || d.Kind != "DaemonSet" {
			continue
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if c.Name != "csi-sidecars-node" {
				continue
			}
			found = true
			if err := command().Check(c.Args); err != nil {
				t.Errorf("%q: %v", c.Args, err)
			}
		}
	}
	if !found {
		t.Error("node.yaml has no csi-sidecars-node")
	}
}
