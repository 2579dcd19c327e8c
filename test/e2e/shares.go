package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// serveShares starts an SMB server that the nodes of a local cluster reach, for a configuration
// with shares.
func (r *run) serveShares(of cluster) error {
	if !of.Shares {
		return nil
	}
	c, ok := r.provider.(*local.Cluster)
	if !ok {
		return errors.New("the nodes of other providers than local may not reach it")
	}
	var err error
	r.server, err = shares.Serve(c, filepath.Join(r.dir, "smb"))
	return err
}

// onGuests returns the mounts of shares on the guests, and the staging records of the driver there.
func (r *run) onGuests(ctx context.Context, driver string) (left []string, err error) {
	all, err := r.provider.(*local.Cluster).Nodes()
	if err != nil {
		return nil, err
	}
	records := "/var/lib/kubelet/plugins/" + driver + ".state/staged"
	for _, n := range all {
		if !n.Guest() {
			continue
		}
		out, err := n.Run(ctx, "sh", "-c",
			"awk '$3 == \"cifs\" {print $2}' /proc/mounts && find "+records+" -mindepth 1")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			left = append(left, n.Name+":"+strings.TrimSpace(line))
		}
	}
	return left, nil
}

// onShare returns the paths of files on the share that are of no volume which exists, but for the
// directories of the driver and its reserve.
func (r *run) onShare() (left []string, err error) {
	root := shares.Directory(r.server)
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
