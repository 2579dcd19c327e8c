package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	utilexec "k8s.io/utils/exec"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/linux/tool"
)

// permitted are the commands that mount-utils may run on a device: the program and its first
// arguments. mount-utils needs no other commands for the calls of linux. Each program name is a
// string literal here, because a test in deploy/images looks for the programs in the image of the
// driver.
var permitted = [][]string{
	{"blkid", "-p"},
	{"mkfs.ext4"}, {"mkfs.xfs"}, {"mkfs.btrfs"},
	{"resize2fs"}, {"xfs_growfs"}, {"btrfs", "filesystem", "resize"},
}

// programs runs the programs that mount-utils calls for a device, under the supervision of
// tool.Runner. It rejects mkfs and fsck if the content of the device does not permit them:
// mount-utils relies on blkid(8) alone, which reports an unreadable disk as blank.
type programs struct {
	utilexec.Interface // nil: mount-utils calls no other method than Command
	*Disks
	ctx    context.Context
	disk   tool.Disk
	files  []*os.File
	fsType string
	format bool // mkfs may run
	repair bool // fsck may run
	failed error
}

// Command implements [utilexec.Interface]. Command does not start the program.
func (p *programs) Command(name string, args ...string) utilexec.Cmd {
	return &program{programs: p, name: name, args: args}
}

// program is a program that has not started.
type program struct {
	utilexec.Cmd // nil: mount-utils calls no other method than CombinedOutput
	*programs
	name string
	args []string
}

// CombinedOutput runs the program. CombinedOutput returns the errors that mount-utils expects.
// CombinedOutput also records the errors, as mount-utils only logs some of them.
func (p *program) CombinedOutput() ([]byte, error) {
	ctx, end := p.ctx, tool.Kill
	switch {
	case strings.HasPrefix(p.name, "mkfs."):
		if !p.format {
			return nil, p.recordFailure(
				fmt.Errorf("%w: blkid found no filesystem on a device that has a filesystem", mounter.ErrDevice))
		}
		ctx = context.WithoutCancel(ctx) // mkfs might never end if each retry began anew
	case p.name == "fsck":
		return p.fsck()
	case p.name == "resize2fs", p.name == "xfs_growfs", p.name == "btrfs":
		ctx, end = context.WithoutCancel(ctx), tool.LetFinish
	}
	for _, command := range permitted {
		if args := command[1:]; p.name == command[0] && len(p.args) >= len(args) &&
			slices.Equal(p.args[:len(args)], args) {
			out, err := p.tools.Output(ctx, p.disk, end, p.files, command[0], p.args...)
			return out, p.convert(err)
		}
	}
	return nil, p.recordFailure(fmt.Errorf("%w: mount-utils calls %s %q", errors.ErrUnsupported, p.name, p.args))
}

// fsck repairs an ext4 as fsck(8) would, and then grows the ext4, as a mounted ext4 cannot always
// grow. xfs and btrfs need no fsck: fsck.xfs(8), fsck.btrfs(8).
func (p *program) fsck() ([]byte, error) {
	if !p.repair {
		return nil, p.recordFailure(fmt.Errorf("%w: blkid found a filesystem on a blank device", mounter.ErrDevice))
	}
	if p.fsType != "ext4" {
		return nil, nil
	}
	err := p.filesystems.Check(p.ctx, p.disk)
	if err == nil {
		err = p.filesystems.GrowOffline(p.ctx, p.disk)
	}
	if err != nil {
		return nil, p.recordFailure(err)
	}
	return nil, nil
}

// recordFailure records the first error, which fails the whole call.
func (p *programs) recordFailure(err error) error {
	if p.failed == nil {
		p.failed = err
	}
	return err
}

func (p *programs) convert(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	if err != nil {
		p.recordFailure(err)
	}
	return err
}
