package main

import (
	"testing"

	"github.com/causeway-csi/causeway/internal/manifests"
)

func TestTheManifestsCommandLineIsRead(t *testing.T) {
	args := manifests.Args(t, "node.yaml", "csi-sidecars-node")
	if err := command().Check(args); err != nil {
		t.Errorf("%q: %v", args, err)
	}
}
