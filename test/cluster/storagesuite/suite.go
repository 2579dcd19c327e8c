// Package storagesuite prepares the nodes of a test cluster for Kubernetes' storage suite, for any
// driver.
package storagesuite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/components"
	"github.com/causeway-csi/causeway/test/cluster/existing"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// The programs of the suite, which Programs builds.
const (
	Ginkgo  = "ginkgo"
	Binary  = "suite.test" // ginkgo requires this ending
	Agnhost = "agnhost"
)

// Programs returns the directory that has the named programs, and builds missing programs, which
// takes minutes the first time.
func Programs(ctx context.Context, log io.Writer, names ...string) (string, error) {
	all := map[string]components.Tool{
		Ginkgo:  {Module: "suite", Package: "github.com/onsi/ginkgo/v2/ginkgo"},
		Binary:  {Module: "suite", Package: ".", Test: true},
		Agnhost: {Module: "suite", Package: "k8s.io/kubernetes/test/images/agnhost"},
	}
	some := map[string]components.Tool{}
	for _, n := range names {
		some[n] = all[n]
	}
	return components.BuildTools(ctx, log, filepath.Join(chart.Sources(), "test", "e2e", "tools"), some)
}

// Load gives every Linux node of a cluster the suite's images, and every node of a local cluster
// crictl. bin has agnhost. It may be repeated. An existing cluster is refused: it pulls the images
// from registry.k8s.io.
func Load(ctx context.Context, p provider.Provider, bin string) error {
	if _, ok := p.(*existing.Cluster); ok {
		return errors.New("invalid provider \"existing\": must be \"local\" or \"kind\"; an existing cluster pulls " +
			"the suite's images from registry.k8s.io")
	}
	dir, err := os.MkdirTemp("", "causeway-suite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tars, err := testimages.BuildSuite(dir, filepath.Join(bin, Agnhost))
	if err != nil {
		return err
	}
	if err := p.Load(ctx, tars...); err != nil {
		return err
	}
	c, ok := p.(*local.Cluster)
	if !ok {
		return nil // kind's nodes have crictl
	}
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := giveCrictl(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// crictl has the two commands that the suite uses: find a container by its pod's UID and its name,
// and stop it.
const crictl = `#!/bin/sh
case "$1" in
ps)
	shift
	while [ $# -gt 0 ]; do
		case "$1" in
		--label) uid=${2#*=}; shift ;;
		--name) name=$2; shift ;;
		esac
		shift
	done
	running=$(CTR -n k8s.io tasks ls | awk '$3 == "RUNNING" {print $1}')
	for id in $(CTR -n k8s.io containers ls -q "labels.\"io.kubernetes.pod.uid\"==$uid,labels.\"io.kubernetes.container.name\"==$name"); do
		case " $(echo $running) " in *" $id "*) echo $id ;; esac
	done
	;;
stop)
	CTR -n k8s.io tasks kill -s SIGTERM "$2"
	;;
*)
	echo "crictl here does not know: $*" >&2
	exit 1
	;;
esac
`

// giveCrictl writes crictl into a filesystem that only the node sees: the directory below is this
// machine's, and read-only.
func giveCrictl(ctx context.Context, n local.Node) error {
	const dir = "/usr/local/sbin"
	ctr, err := n.Run(ctx, "sh", "-c", "command -v ctr")
	if err != nil {
		return err
	}
	if _, err := n.Run(ctx, "sh", "-c", "mountpoint -q "+dir+" || mount -t tmpfs -o mode=755 crictl "+dir); err != nil {
		return err
	}
	cmd, err := n.Command(ctx, "sh", "-c", "cat >"+dir+"/crictl && chmod 755 "+dir+"/crictl")
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(crictl, "CTR", strings.TrimSpace(ctr)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("crictl on %s: %w: %s", n.Name, err, out)
	}
	return nil
}
