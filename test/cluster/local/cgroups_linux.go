package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups is where control groups are.
const cgroups = "/sys/fs/cgroup"

// hierarchies returns the directories of the version 1 hierarchies, and that of version 2 beside
// them if present: it has no controllers, but runc makes groups in it, too.
func hierarchies() ([]string, error) {
	var root unix.Statfs_t
	if err := unix.Statfs(cgroups, &root); err != nil {
		return nil, err
	}
	if root.Type == unix.CGROUP2_SUPER_MAGIC {
		return nil, errors.New("this machine has control groups of version 2, and --provider=local is for version 1 " +
			"alone: use --provider=kind")
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return nil, err
	}
	var found []string
	first := 0
	for _, e := range entries {
		dir := filepath.Join(cgroups, e.Name())
		var s unix.Statfs_t
		if !e.IsDir() || unix.Statfs(dir, &s) != nil {
			continue
		}
		switch s.Type {
		case unix.CGROUP_SUPER_MAGIC:
			first++
			found = append(found, dir)
		case unix.CGROUP2_SUPER_MAGIC:
			found = append(found, dir)
		}
	}
	if first == 0 {
		return nil, fmt.Errorf("no control group hierarchy of version 1 is mounted below %s", cgroups)
	}
	return found, nil
}

// makeCgroups makes the group of a node in each hierarchy, and returns its path in the kubelet's
// form. makeCgroups removes the remains of an earlier run of the node.
func makeCgroups(parent, node string) (string, error) {
	found, err := hierarchies()
	if err != nil {
		return "", err
	}
	for _, h := range found {
		if err := removeCgroup(filepath.Join(h, parent, node)); err != nil {
			return "", err
		}
		for _, dir := range []string{filepath.Join(h, parent), filepath.Join(h, parent, node)} {
			if err := makeCgroup(dir); err != nil {
				return "", err
			}
		}
	}
	return "/" + filepath.Join(parent, node), nil
}

// makeCgroup makes a group. A new group of cpuset has no CPUs and no memory until they are set.
func makeCgroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		of, err := os.ReadFile(filepath.Join(filepath.Dir(dir), f))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f), of, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes all groups of a cluster. Their processes have been killed, and the kernel
// may take a moment.
func removeCgroups(parent string) error {
	found, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range found {
		if err := removeCgroup(filepath.Join(h, parent)); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a group and those below it, if present.
func removeCgroup(dir string) error {
	var err error
	for range 100 {
		if err = removeGroups(dir); err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// removeGroups removes directories only: files of a group cannot be removed, and go with it.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
