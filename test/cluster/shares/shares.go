// Package shares gives a local cluster an SMB server, and installs the driver with its share.
package shares

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/kubectl"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// Classes of volumes on the share.
const (
	Class     = "causeway-smb"
	WaitClass = "causeway-smb-wait" // with outage: wait
)

// The Secrets of the controller and of the nodes.
const (
	ControllerSecret = "smb-controller"
	NodesSecret      = "smb-nodes"
)

// Packages is the group of hack/packages with the programs of Serve.
const Packages = "smb"

// Serve starts an SMB server that the nodes and pods of a cluster reach, with its files in dir,
// which must not exist.
func Serve(c *local.Cluster, dir string) (*smbtest.Server, error) {
	address, err := c.MachineAddress()
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return smbtest.StartAt(dir, address)
}

// Directory returns the directory of this machine that is the source of the volumes.
func Directory(s *smbtest.Server) string { return filepath.Join(s.Dir, smbtest.Share) }

// Install installs the chart with the share of a server in a cluster with guests, and more
// arguments of Helm. The other nodes get the taint of control planes: the suite's pods, and those
// of tests, are on guests.
func Install(ctx context.Context, c *local.Cluster, k kubectl.Kubectl, s *smbtest.Server, log io.Writer,
	args ...string) error {
	if _, err := k.Run(ctx, "taint", "nodes", "-l", "node.kubernetes.io/instance-type!="+local.GuestType, "--overwrite",
		"node-role.kubernetes.io/control-plane:NoSchedule"); err != nil {
		return err
	}
	if err := install.MakeNamespace(ctx, k); err != nil {
		return err
	}
	for _, name := range []string{ControllerSecret, NodesSecret} {
		if err := WriteSecret(ctx, k, name, s); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "causeway-shares-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	images, err := install.MakeImages(ctx, log, dir, "dev")
	if err != nil {
		return err
	}
	if err := images.Load(ctx, log, c); err != nil {
		return err
	}
	return upgrade(ctx, k, images, s, log, args...)
}

// upgrade installs or upgrades the chart, for images that the nodes have.
func upgrade(ctx context.Context, k kubectl.Kubectl, images install.Images, s *smbtest.Server, log io.Writer,
	args ...string) error {
	helm, err := install.NewHelm(ctx, log, k)
	if err != nil {
		return err
	}
	fmt.Fprintln(log, "shares: installing charts/causeway with", s.Source())
	set := []string{"smb.shares.private.source=" + s.Source()}
	for _, class := range []string{Class, WaitClass} {
		set = append(set, "smb.storageClasses."+class+".source="+s.Source())
	}
	_, err = helm.Upgrade(ctx, chart.Directory(), images, append([]string{"--install", "--timeout=300s",
		"--values=" + filepath.Join(chart.Sources(), "test", "cluster", "shares", "values.yaml"),
		"--set-string=" + strings.Join(set, ",")}, args...)...)
	return err
}

// WriteSecret creates or replaces a Secret with the user of the server, and its present password.
func WriteSecret(ctx context.Context, k kubectl.Kubectl, name string, s *smbtest.Server) error {
	return k.Apply(ctx, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\n"+
		"stringData: {username: %q, password: %q}\n", name, install.Namespace, s.User, s.Password))
}
