package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inotifyLimit is how many inotify instances root may have, all of its processes together. The
// default, 128, is enough for three clusters of two nodes; a kubelet beyond that ends again and
// again.
const inotifyLimit = "/proc/sys/fs/inotify/max_user_instances"

// Instances that a cluster uses, as counted, with a reserve for the pods.
const (
	inotifyPlane = 15
	inotifyNode  = 12
)

// inotify returns an error if there are too few instances left for a cluster of so many nodes.
func inotify(nodes int) error {
	text, err := os.ReadFile(inotifyLimit)
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", inotifyLimit, err)
	}
	used, need := inotifyUsed(), inotifyPlane+nodes*inotifyNode
	if used+need > limit {
		return fmt.Errorf("of %d inotify instances (%s) %d are in use, and %d nodes take some %d: end other "+
			"clusters, or say: sysctl fs.inotify.max_user_instances=%d",
			limit, inotifyLimit, used, nodes, need, max(1024, 2*(used+need)))
	}
	return nil
}

// inotifyUsed counts the instances that root's processes have open. Processes that end during the
// count do not matter.
func inotifyUsed() int {
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0
	}
	used := 0
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && strings.HasSuffix(to, "inotify") &&
			strings.HasPrefix(to, "anon_inode:") {
			used++
		}
	}
	return used
}
