// Command vm runs tests in a guest with a kernel of Debian's: tests of features that the machine's
// own kernel may lack, such as project quotas, or that the machine's root may not use. vm needs no
// KVM. vm needs root only to install packages.
//
// The guest has a kernel, an init that is in the directory guest, the tests as static programs, and
// the few programs that tests run, which are those of this machine. The guest has blank disks with
// serial numbers, and a network on which it reaches this machine, for an SMB server that runs here
// as a child process (package smbtest).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/internal/prereq"
	"github.com/causeway-csi/causeway/internal/qemu"
)

// suite is a set of tests of a package. None of them may be skipped in the guest.
type suite struct {
	Package string // below the module
	Run     string // as go test -run
	Long    bool   // runs only if -only names it
	SELinux bool   // runs only with -selinux
}

// linux has the mounter of Linux, below the module.
const linux = "pkg/mounter/internal/linux"

// suites are the tests that run in the guest. It is as slow as a machine of ten years ago: write
// little.
var suites = []suite{
	{Package: "pkg/backend/internal/quota", Run: "Project|^TestGroups|Struct|Numbers"},
	{Package: "pkg/backend/hostpath", Run: "^TestProjects"},
	// With CAP_SYS_RESOURCE, which not every root has, and with the disks.
	{Package: linux + "/image", Run: "^TestImagesGrow$/^ext4"},
	{Package: linux + "/disk",
		Run: "^(TestAMountedDeviceGrows|TestAnExt4GrowsBefore.*|TestAnAttachedDiskIsFoundAndFormatted)$/^ext4"},
	{Package: linux + "/cifs", Run: "^TestShares$"},
	{Package: "cmd/driver", Run: "^TestSharesPassSanity$"},
	{Package: "pkg/backend/smb", Run: "^TestNode$", Long: true},
	{Package: linux, Run: "^TestLabelsOfSELinux$", SELinux: true},
}

// modules are the kernel modules that tests need, without their dependencies.
var modules = []string{"loop", "xfs", "quota_v2", "btrfs", "virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod", "nvme",
	"virtio_net", "cifs", "nls_utf8", "md5", "sha512_generic", "sha256_generic", "aes_generic", "cmac", "hmac",
	// Without ctr and ghash_generic every mount of a share is ENOENT.
	"ecb", "ctr", "cbc", "ghash_generic", "gcm", "ccm", "seqiv"}

// disks are the devices of QEMU that are disks of the guest. Their serial numbers are their names.
var disks = []string{"virtio-blk-pci", "nvme", "scsi-hd"}

// programs are the programs that tests run: hack/packages has their packages.
var programs = []string{"blkid", "blockdev", "losetup", "btrfs", "cp", "e2fsck", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs",
	"mount", "mount.cifs", "resize2fs", "umount"}

// settings are files that programs read, if they are there.
var settings = []string{"/etc/mke2fs.conf"}

func main() {
	only := flag.String("only", "", "run only suites whose package and tests have this `pattern` in them")
	kernel := flag.String("kernel", qemu.Metapackage, "boot the kernel that this `package` of Debian depends on")
	selinux := flag.Bool("selinux", false, "boot with SELinux and a small policy, and run only suites that need it")
	limit := flag.Duration("timeout", time.Hour, "how long the guest may take")
	flag.Parse()
	if err := run(namespace.SignalContext(), *only, *kernel, *selinux, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, kernel string, selinux bool, limit time.Duration) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(suites), func(s suite) bool {
		return !pattern.MatchString(s.Package+" "+s.Run) || (s.Long && only == "") || s.SELinux != selinux
	})
	if len(chosen) == 0 {
		return fmt.Errorf("no suite matches %q", only)
	}
	if err := supported(); err != nil {
		return err
	}
	// Where the programs are that make filesystems, and only root's shell looks.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
	}
	if err := prereq.Install(ctx, os.Stdout, "vm"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "causeway-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	start := time.Now()
	m := machine{dir: dir, selinux: selinux}
	stop, err := m.serveSMB(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := m.prepare(ctx, kernel, chosen); err != nil {
		return err
	}
	prepared := time.Now()
	results, err := m.boot(ctx, limit)
	if err != nil {
		return err
	}
	if err := judge(chosen, results); err != nil {
		return err
	}
	fmt.Printf("vm: all passed; %s to prepare, %s in the guest\n",
		prepared.Sub(start).Round(100*time.Millisecond), time.Since(prepared).Round(100*time.Millisecond))
	return nil
}
