package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// serveShares starts an SMB server that the nodes of a local cluster reach.
func (r *run) serveShares(ctx context.Context) error {
	c, ok := r.provider.(*local.Cluster)
	if !ok {
		return errors.New("the nodes of other providers than local may not reach it")
	}
	address, err := c.MachineAddress()
	if err != nil {
		return err
	}
	dir := filepath.Join(r.dir, "smb")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	r.server, err = smbtest.StartAt(dir, address)
	return err
}

// installShares installs the chart with the share of the server. The ordinary node is for the
// controllers: the suite takes a node with this taint for one of the control plane.
func (r *run) installShares(ctx context.Context) error {
	if _, err := r.kubectl.Run(ctx, "taint", "nodes", "-l", "node.kubernetes.io/instance-type!="+local.GuestType,
		"--overwrite", "node-role.kubernetes.io/control-plane:NoSchedule"); err != nil {
		return err
	}
	if err := install.MakeNamespace(ctx, r.kubectl); err != nil {
		return err
	}
	for _, name := range []string{"smb-controller", "smb-nodes"} {
		if _, err := r.kubectl.Run(ctx, "-n", install.Namespace, "create", "secret", "generic", name,
			"--from-literal=username="+r.server.User, "--from-literal=password="+r.server.Password); err != nil {
			return err
		}
	}
	images := filepath.Join(r.dir, "images")
	if err := os.Mkdir(images, 0o755); err != nil {
		return err
	}
	made, err := install.MakeImages(ctx, os.Stderr, images, "dev")
	if err != nil {
		return err
	}
	if err := made.Load(ctx, os.Stderr, r.provider); err != nil {
		return err
	}
	helm, err := install.NewHelm(ctx, os.Stderr, r.kubectl)
	if err != nil {
		return err
	}
	say("installing charts/causeway with a share")
	source := fmt.Sprintf("//%s:%d/%s", r.server.Address, r.server.Port, smbtest.Share)
	_, err = helm.Upgrade(ctx, chart.Directory(), made, "--install", "--timeout=300s",
		"--values="+filepath.Join(r.configs[0].dir, "values.yaml"),
		"--set-string=smb.shares.e2e.source="+source+",smb.storageClasses.e2e-smb.source="+source)
	return err
}

// onShare returns the paths of files on the share that are of no volume which exists, but for the
// directories of the driver and its reserve.
func (r *run) onShare() (left []string, err error) {
	root := filepath.Join(r.server.Dir, smbtest.Share)
	permanent := []string{".", ".causeway", ".causeway/reserve", ".causeway/snapshots", ".causeway/trash",
		".causeway/volumes", ".causeway/work"}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(root, path)
		if errors.Is(err, fs.ErrNotExist) { // the driver deletes
			return nil
		}
		if err := errors.Join(err, relErr); err != nil {
			return err
		}
		if slices.Contains(permanent, rel) {
			return nil
		}
		left = append(left, "share:"+strings.ReplaceAll(rel, " ", "_"))
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	return left, err
}
