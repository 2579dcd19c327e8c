package main

import (
	"testing"

	"github.com/causeway-csi/causeway/internal/manifests"
)

func TestTheManifestsCommandLineIsRead(t *testing.T) {
	for _, file := range []string{"node.yaml", "../windows/node.yaml"} {
		args := manifests.Args(t, file, "csi-sidecars-node")
		if err := command().Check(args); err != nil {
			t.Errorf("%s: %q: %v", file, args, err)
		}
	}
}
