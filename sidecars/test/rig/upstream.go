package rig

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/components"
)

// upstream are the programs that csi-sidecars replaces, with the modules that have them as tools.
// The provisioner has a module of its own, because its main does not compile with the Kubernetes
// version of the others.
var upstream = map[string]components.Tool{
	"csi-attacher": {Module: "others", Package: "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"},
	"csi-resizer":  {Module: "others", Package: "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"},
	"csi-snapshotter": {Module: "others",
		Package: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"},
	"csi-provisioner": {Module: "provisioner",
		Package: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"},
}

// Upstream builds upstream's programs, once for each version, and returns their paths by name.
func Upstream(ctx context.Context) (map[string]string, error) {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/causeway-csi/causeway/sidecars/test").Output()
	if err != nil {
		return nil, err
	}
	built, err := components.BuildTools(ctx, os.Stderr, filepath.Join(strings.TrimSpace(string(module)), "upstream"),
		upstream)
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for name := range upstream {
		paths[name] = filepath.Join(built, name)
	}
	return paths, nil
}
