package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Where the kernel tells of filesystems and loop devices: Documentation/ABI/testing/sysfs-fs-ext4,
// sysfs-block-loop, and fs/btrfs/sysfs.c of Linux.
const (
	loopFiles   = "/sys/block/loop*/loop/backing_file"
	directIO    = "/sys/block/%s/loop/dio"
	ext4Errors  = "/sys/fs/ext4/%s/errors_count"
	btrfsDevice = "/sys/fs/btrfs/*/devices/%s"
	btrfsErrors = "devinfo/*/error_stats"
)

// Failing is that of mounter.Images.
func (h *Host) Failing() (map[string]mounter.Failure, error) {
	images, err := filepath.Glob(loopFiles)
	if err != nil {
		return nil, err
	}
	all := map[string]mounter.Failure{}
	h.Unmountable(all)
	defer func() { h.Tools.Stalls.Failures(all) }()
	byDevice := map[string]string{}
	for _, file := range images {
		name, err := os.ReadFile(file)
		if err != nil { // the device has just let go
			continue
		}
		device, image := strings.Split(file, "/")[3], strings.TrimSuffix(string(name), "\n")
		byDevice["/dev/"+device] = image
		flag, err := os.ReadFile(fmt.Sprintf(directIO, device))
		if _, worse := all[image]; !worse && err == nil && string(flag) == "0\n" {
			all[image] = mounter.Failure{Kind: mounter.PageCached,
				Message: "/dev/" + device + " uses the page cache"}
		}
		if why := recorded(device); why != "" {
			all[image] = mounter.Failure{Kind: mounter.Erroneous, Message: why}
		}
	}
	if len(byDevice) == 0 {
		return all, nil
	}
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return byDevice[i.Source] == "",
			false
	})
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if f, ok := shown(m); ok {
			all[byDevice[m.Source]] = f
		}
	}
	for device, f := range h.down(mounts) {
		all[byDevice[device]] = f
	}
	return all, nil
}

// recorded returns the errors that the filesystem on a loop device has recorded.
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

// shown returns the failure that the options of a mount show. A mount that is read-only by intent
// is so by its own flag, too. Since Linux 6.15 ext4 shows its own state, also that it is shut down.
func shown(m *mountinfo.Info) (mounter.Failure, bool) {
	has := func(options, one string) bool { return slices.Contains(strings.Split(options, ","), one) }
	switch {
	case has(m.VFSOptions, "shutdown"):
		return isDown(m), true
	case has(m.VFSOptions, "emergency_ro"), has(m.Options, "rw") && has(m.VFSOptions, "ro"):
		return mounter.Failure{Kind: mounter.TurnedReadOnly, Message: fmt.Sprintf("%s at %s has made itself read-only",
			m.FSType, m.Mountpoint)}, true
	}
	return mounter.Failure{}, false
}

func isDown(m *mountinfo.Info) mounter.Failure {
	return mounter.Failure{Kind: mounter.Down, Message: fmt.Sprintf("%s at %s answers with errors only", m.FSType,
		m.Mountpoint)}
}

// down returns the filesystems that answer only with errors, or not at all, by their devices. The
// open of the root of an xfs that is shut down fails (xfs_file_open of Linux). down reads nothing:
// a read waits for a tenant who holds the directory's lock. An open of another filesystem shows
// nothing, and that of a btrfs waits for the same lock. Mounts that a tenant has made elsewhere, on
// a FIFO for example, are not opened. A dead disk shows when the filesystem next writes: in its
// options or records, or by the shutdown of an xfs.
func (h *Host) down(mounts []*mountinfo.Info) map[string]mounter.Failure {
	ctx, cancel := context.WithTimeout(context.Background(), inflight.AnswerTime) // for all of them
	defer cancel()
	roots := rootsOf(mounts)
	answers := map[string]*inflight.Call[struct{}]{}
	for device, m := range roots {
		a, err := h.opens.Start(m.ID, func() (struct{}, error) { return struct{}{}, openRoot(m) })
		if err == nil { // else it is not known
			answers[device] = a
		}
	}
	all := map[string]mounter.Failure{}
	for device, a := range answers {
		m := roots[device]
		switch _, err := a.Wait(ctx); {
		case errors.Is(err, inflight.ErrNoAnswer):
			all[device] = mounter.Failure{Kind: mounter.Stalled,
				Message: fmt.Sprintf("%s at %s does not answer (since %s)", m.FSType, m.Mountpoint,
					a.Since().UTC().Format(time.RFC3339))}
		case errors.Is(err, unix.EIO):
			all[device] = isDown(m)
		}
	}
	return all
}

// rootsOf returns a mount of the root of each xfs, by its device. The path of a mount that lies
// in another volume leads through a tenant's directories, and is not taken.
func rootsOf(mounts []*mountinfo.Info) map[string]*mountinfo.Info {
	ids := map[int]bool{}
	for _, m := range mounts {
		ids[m.ID] = true
	}
	roots := map[string]*mountinfo.Info{}
	for _, m := range mounts {
		if m.FSType == "xfs" && m.Root == "/" && !ids[m.Parent] && roots[m.Source] == nil {
			roots[m.Source] = m
		}
	}
	return roots
}

// openRoot opens the root of a mounted filesystem. openRoot returns nil if another mount is at its
// path by now.
func openRoot(m *mountinfo.Info) error {
	fd, err := tree.Resolve(m.Mountpoint, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if at, err := tree.StatFD(fd); err != nil || at.Mount != uint64(m.ID) {
		return err
	}
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(root)
}
