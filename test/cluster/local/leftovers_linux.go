package local

import (
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// End is Down that looks at the machine afterwards. Error: Down's, or that something of the cluster
// is left.
func (c *Cluster) End(ctx context.Context) error {
	if err := c.Down(ctx); err != nil || c.lent {
		return err
	}
	left, err := c.Leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("something of the cluster is left on this machine: %q", left)
	}
	return err
}

// Leftovers describes the remains of the cluster on this machine: nothing after Down.
func (c *Cluster) Leftovers() ([]string, error) {
	var found []string
	if _, err := os.Stat(c.dir); err == nil {
		found = append(found, "directory "+c.dir)
	}
	if _, err := net.InterfaceByName(hostLink(c.name)); err == nil {
		found = append(found, "network device "+hostLink(c.name))
	}
	for _, look := range []func() ([]string, error){c.leftProcesses, c.leftGroups, c.leftMounts, c.leftLoops} {
		some, err := look()
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// leftProcesses finds processes whose program, root or working directory is in the cluster's
// directory, or whose mounts are.
func (c *Cluster) leftProcesses() ([]string, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range processes {
		if filepath.Base(p) == strconv.Itoa(os.Getpid()) {
			continue
		}
		line, _ := os.ReadFile(p + "/cmdline") // it may have ended
		mounts, _ := os.ReadFile(p + "/mountinfo")
		is := strings.Contains(string(mounts), c.dir+"/")
		for _, link := range []string{"exe", "root", "cwd"} {
			at, _ := os.Readlink(filepath.Join(p, link))
			is = is || strings.HasPrefix(at, c.dir+"/")
		}
		if is {
			found = append(found, fmt.Sprintf("process %s: %s", filepath.Base(p),
				strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")))
		}
	}
	return found, nil
}

func (c *Cluster) leftGroups() ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, h := range all {
		if group := filepath.Join(h, cgroup(c.name)); exists(group) {
			found = append(found, "control group "+group)
		}
	}
	return found, nil
}

func (c *Cluster) leftMounts() ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, c.dir+"/") {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found, nil
}

func (c *Cluster) leftLoops() ([]string, error) {
	all, err := loops()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, l := range c.ours(all) {
		found = append(found, "loop device "+l.path+" of "+l.backing)
	}
	for _, l := range all { // of a disk that is deleted, which it keeps
		if path.Base(l.backing) == diskName(c.dir)+" (deleted)" {
			found = append(found, "loop device "+l.path+" of "+l.backing)
		}
	}
	return found, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
