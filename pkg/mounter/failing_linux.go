package mounter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Where the kernel tells of filesystems and loop devices: Documentation/ABI/testing/sysfs-fs-ext4, sysfs-block-loop, and
// fs/btrfs/sysfs.c of Linux.
const (
	loopFiles   = "/sys/block/loop*/loop/backing_file"
	ext4Errors  = "/sys/fs/ext4/%s/errors_count"
	btrfsDevice = "/sys/fs/btrfs/*/devices/%s"
	btrfsErrors = "devinfo/*/error_stats"
)

func (l *linux) Failing() (map[string]Failure, error) {
	images, err := filepath.Glob(loopFiles)
	if err != nil {
		return nil, err
	}
	all := map[string]Failure{}
	defer func() { l.stalls.failures(all) }()
	byDevice := map[string]string{}
	for _, file := range images {
		name, err := os.ReadFile(file)
		if err != nil { // the device has just let go
			continue
		}
		device, image := strings.Split(file, "/")[3], strings.TrimSuffix(string(name), "\n")
		byDevice["/dev/"+device] = image
		if why := recorded(device); why != "" {
			all[image] = Failure{Erroneous, why}
		}
	}
	if len(byDevice) == 0 {
		return all, nil
	}
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return byDevice[i.Source] == "", false })
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if f, ok := shown(m); ok {
			all[byDevice[m.Source]] = f
		}
	}
	return all, nil
}

// recorded returns what the filesystem on a loop device has written down about itself.
func recorded(device string) string {
	if n := number(fmt.Sprintf(ext4Errors, device)); n > 0 {
		return fmt.Sprintf("ext4 has found %d errors in itself", n)
	}
	links, _ := filepath.Glob(fmt.Sprintf(btrfsDevice, device))
	for _, link := range links {
		stats, _ := filepath.Glob(filepath.Join(link, "..", "..", btrfsErrors))
		for _, file := range stats {
			text, _ := os.ReadFile(file)
			for line := range strings.Lines(string(text)) {
				if what, count, _ := strings.Cut(strings.TrimSpace(line), " "); count != "" && count != "0" {
					return fmt.Sprintf("btrfs has counted %s: %s", what, count)
				}
			}
		}
	}
	return ""
}

func number(file string) (n int) {
	text, err := os.ReadFile(file)
	if err == nil {
		fmt.Sscan(string(text), &n)
	}
	return n
}

// shown returns what a mount shows of its filesystem. One that was mounted to be read only is so by its own flag, too.
// Since Linux 6.15 ext4 has words of its own for what it does to itself.
func shown(m *mountinfo.Info) (Failure, bool) {
	has := func(options, one string) bool { return slices.Contains(strings.Split(options, ","), one) }
	switch {
	case has(m.VFSOptions, "shutdown") || dead(m.Mountpoint):
		return Failure{Down, fmt.Sprintf("%s at %s answers with errors only", m.FSType, m.Mountpoint)}, true
	case has(m.VFSOptions, "emergency_ro"), has(m.Options, "rw") && has(m.VFSOptions, "ro"):
		return Failure{TurnedReadOnly, fmt.Sprintf("%s at %s has made itself read-only", m.FSType, m.Mountpoint)}, true
	}
	return Failure{}, false
}

// dead reports whether a directory can't be read because of an error of its disk.
func dead(path string) bool {
	dir, err := os.Open(path)
	if err == nil {
		_, err = dir.Readdirnames(1)
		dir.Close()
	}
	return errors.Is(err, unix.EIO)
}
