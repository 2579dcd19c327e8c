package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workload is what is read here of a DaemonSet. Kubernetes' own types would be compiled for every platform.
type workload struct {
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Name string
					Args []string
				}
			}
		}
	}
}

func TestTheManifestsCommandLineIsRead(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "linux", "node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var d workload
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
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
