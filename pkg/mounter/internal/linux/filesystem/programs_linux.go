package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/fair"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tree"
)

// Programs are the programs of filesystems, few of which run at the same time.
type Programs struct {
	CheckSlots  *fair.Slots // for e2fsck and resize2fs
	GrowthSlots *fair.Slots // for growths of mounted filesystems
	tools       *tool.Runner
}

// New returns Programs that run by tools.
func New(tools *tool.Runner) *Programs {
	return &Programs{CheckSlots: fair.New(checkSlots), GrowthSlots: fair.New(growSlots), tools: tools}
}

// GrowOffline grows an ext4 that is not mounted and smaller than its device, as that of an expanded
// volume. It continues when the caller has given up: a resize2fs that is killed, or interrupted by
// a power cut, can leave a filesystem that needs a manual repair. So it does nothing where Grow can
// do so later: the kernel uses its journal.
func (p *Programs) GrowOffline(ctx context.Context, d tool.Disk) error {
	if tool.HasCapability(unix.CAP_SYS_RESOURCE) {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	size, err := tree.SizeOf(d.File)
	if err != nil {
		return err
	}
	super, err := ReadExt4(d.File)
	if err != nil || super.Full(size) {
		return err
	}
	if err := e2fsckError(p.tools.Run(ctx, d, tool.Kill, "e2fsck", "-f", "-p")); err != nil {
		return err
	}
	return p.tools.Run(ctx, d, tool.LetFinish, "resize2fs")
}

// CheckExt4 repairs the filesystem on a device, and grows the filesystem to the size of the device.
func (p *Programs) CheckExt4(ctx context.Context, m mounter.Mount, d tool.Disk) error {
	leave, err := p.CheckSlots.Acquire(ctx, fair.Request{Kind: "check", Tenant: m.Tenant, Volume: m.Source})
	if err != nil {
		return err
	}
	defer leave()
	if err := p.Check(ctx, d); err != nil {
		return err
	}
	return p.GrowOffline(ctx, d)
}

// Limits of the checks, and of the growths of mounted filesystems, at the same time.
var (
	checkSlots = fair.Limits{Slots: 8, Tenant: 4, Kind: 8}
	growSlots  = fair.Limits{Slots: 32, Tenant: 4, Kind: 32}
)

// Checks is that of mounter.Images.
func (p *Programs) Checks() (all []mounter.Check) {
	for _, e := range p.CheckSlots.Entries() {
		all = append(all, mounter.Check{Image: e.Volume, Tenant: e.Tenant, Running: e.Running, Since: e.Since})
	}
	return all
}

// Check repairs an ext4 that was not unmounted cleanly, as far as e2fsck needs no answers from a
// user. Check fails if the device is in use.
//
// The repair goes on after the end of ctx: if each retry began anew, the repair might never end.
func (p *Programs) Check(ctx context.Context, d tool.Disk) error {
	return e2fsckError(p.tools.Run(context.WithoutCancel(ctx), d, tool.Kill, "e2fsck", "-p"))
}

// e2fsckError returns the error of e2fsck, or nil if the exit code means that no error is left in
// the filesystem. A check that was killed, canceled or short of memory says nothing of the
// filesystem. Exit code 8 is also that of a superblock that cannot be used: e2fsck(8).
func e2fsckError(err error) error {
	const repaired, reboot, operational, canceled = 1, 2, 8, 32
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		return err
	}
	switch code := exit.ExitCode(); {
	case !exit.Exited(), code&canceled != 0, code&operational != 0 && noMemory.MatchString(err.Error()):
		return fmt.Errorf("%w: a lack of memory can be the cause: e2fsck: %w", mounter.ErrCheck, err)
	case code&^(repaired|reboot) != 0:
		return fmt.Errorf("%w: %w", mounter.ErrFormat, err)
	}
	return nil
}

// noMemory matches the messages of e2fsck: EXT2_ET_NO_MEMORY of libext2fs, and ENOMEM.
var noMemory = regexp.MustCompile(`Memory allocation failed|Cannot allocate memory`)

// formats are the commands that make each filesystem in a file. ext4 reserves no blocks for root.
var formats = map[string][]string{
	"ext4":     {"mkfs.ext4", "-q", "-F", "-m", "0"},
	"xfs":      {"mkfs.xfs", "-q", "-f"},
	tree.Btrfs: {"mkfs.btrfs", "-q", "-f"},
}

// CanFormat returns errors.ErrUnsupported if the program that makes a filesystem is not installed,
// or there is none for Linux, and ErrFormat for a type outside of FSTypes.
func CanFormat(fsType string) error {
	if err := mounter.CheckFSType(fsType); err != nil {
		return err
	}
	command, ok := formats[fsType]
	if !ok {
		return fmt.Errorf("%w: the filesystem %s on Linux", errors.ErrUnsupported, fsType)
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return fmt.Errorf("%w: %s is not installed", errors.ErrUnsupported, command[0])
	}
	return nil
}

// largeSectors are further arguments for an image of at least mounter.LargeImage bytes.
var largeSectors = map[string]string{"ext4": "-b 4096", "xfs": "-s size=4096"}

const formatAttempts = 10

// Format makes a filesystem in an image that is not in use. CanFormat has accepted its type.
func (p *Programs) Format(ctx context.Context, image *os.File, fsType string) error {
	d, err := tool.ImageDisk(image)
	if err != nil {
		return err
	}
	info, err := image.Stat()
	if err != nil {
		return err
	}
	command := formats[fsType]
	arguments := command[1:]
	if info.Size() >= mounter.LargeImage {
		arguments = slices.Concat(arguments, strings.Fields(largeSectors[fsType]))
	}
	for attempt := 1; ; attempt++ {
		err := p.tools.Run(ctx, d, tool.Kill, command[0], arguments...)
		// mkfs.btrfs opens the loop devices of all mounts, and fails if one is detached meanwhile: btrfs-progs 6.2
		if attempt == formatAttempts || err == nil || !strings.Contains(err.Error(), "cannot check mount status") {
			return err
		}
	}
}
