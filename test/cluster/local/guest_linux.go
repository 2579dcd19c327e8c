package local

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/qemu"
)

// A guest has four disks, whose serial numbers are their names, and two network cards: one on the
// plane's bridge, and one of the emulator's own network, on which commands reach the guest even
// where its cable is pulled.
const (
	systemDisk = "system" // programs and modules, read-only, the same for all guests with a kernel
	stateDisk  = "state"  // the node's own directory
	dataDisk   = "data"   // of StorageDir, with project quotas
	seedDisk   = "seed"   // a tar archive: the node's keys
)

const (
	guestMemory    = "3072"              // MiB
	guestState     = 24 << 30            // bytes; the file is sparse
	insideAddress  = "10.0.2.15"         // of the guest in the emulator's network
	insideHardware = "02:00:00:00:01:01" // of that card
	sshPort        = "22"
)

// guestKeys are the files of a node's own directory that its guest gets.
var guestKeys = []string{"ca.crt", "kubelet.crt", "kubelet.key", "kubelet.kubeconfig", "kube-proxy.kubeconfig",
	sshHostKey, sshClientPublicKey}

// startGuest starts a node that is a guest, and plugs it into the bridge. The tap device goes with
// the guest.
func (c *Cluster) startGuest(ctx context.Context, plane int, n node) error {
	var tap *os.File
	if err := enterNetwork(plane, func() (err error) { tap, err = openTap(n.port); return err }); err != nil {
		return fmt.Errorf("tap device: %w", err)
	}
	defer tap.Close() // the guest has its own
	if err := inNetwork(ctx, plane, "ip", "link", "set", n.port, "master", bridge, "up").run(); err != nil {
		return err
	}
	return c.spawn(c.node(n.Name).of("init.log"), nodeRole, []*os.File{tap}, n.Name)
}

// openTap makes a tap device in the network of this thread. The device is gone when no process has
// the file. Linux, Documentation/networking/tuntap.rst.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// runGuest is the init process of a node that is a guest: it waits for the node's keys and runs the
// emulator. The emulator ends with it. Descriptor 3 is the tap device.
func runGuest(ctx context.Context, f files, n node) error {
	own := f.node(n.Name)
	if err := makeDirs(own.of("log")); err != nil {
		return err
	}
	if err := ip(ctx, "link set lo up"); err != nil {
		return err
	}
	if err := awaitFile(ctx, own.of("kube-proxy.kubeconfig")); err != nil {
		return err
	}
	say("its keys are there")
	if err := writeSeed(f, own); err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	kernel := f.vmlinuz(n.kernel)
	if _, err := os.Stat(kernel); err != nil {
		return err
	}
	args := slices.Concat(qemu.Machine(), []string{
		"-m", guestMemory, "-kernel", kernel, "-initrd", f.initrd(n.kernel),
		"-append", qemu.Append + " -- " + kernelRole + " " + f.dir + " " + n.Name,
		"-serial", "file:" + own.log("console"),
		"-netdev", "tap,id=cable,fd=3", "-device", "virtio-net-pci,netdev=cable,romfile=,mac=" + n.hardware,
		"-netdev", "user,id=inside,ipv6=off,restrict=on,hostfwd=tcp:127.0.0.1:" + sshPort + "-" + insideAddress + ":" +
			sshPort,
		"-device", "virtio-net-pci,netdev=inside,romfile=,mac=" + insideHardware,
	})
	disks := [][3]string{{systemDisk, f.system(n.kernel), ",readonly=on"}, {stateDisk, own.of("state.img"), ""},
		{seedDisk, own.of("seed.tar"), ",readonly=on"}}
	if _, err := os.Stat(own.noDisk()); err != nil {
		disks = append(disks, [3]string{dataDisk, own.disk(), ""})
	}
	for _, d := range disks {
		// Writes are in this machine's page cache, which outlives the guest: no need to wait for
		// this machine's disk.
		args = append(args, "-drive", "format=raw,if=none,cache=unsafe,id="+d[0]+",file="+d[1]+d[2],
			"-device", "virtio-blk-pci,drive="+d[0]+",serial="+d[0])
	}
	cmd := exec.CommandContext(ctx, qemu.Emulator, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = own.dir, os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{os.NewFile(3, "tap")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // it ends with this thread
	say("the guest starts")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", qemu.Emulator, err)
	}
	return errors.New("the guest has ended")
}

// writeSeed writes the archive that is a guest's seed disk. A disk has whole sectors.
func writeSeed(f files, own nodeFiles) error {
	out, err := os.Create(own.of("seed.tar"))
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	paths := []string{f.spec()}
	for _, k := range guestKeys {
		paths = append(paths, own.of(k))
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o600, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	size, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	const sector = 4096
	return errors.Join(out.Truncate((size+sector-1)/sector*sector), out.Close())
}

// readSeed writes the files of a seed disk to their paths.
func readSeed(device string) error {
	in, err := os.Open(device)
	if err != nil {
		return err
	}
	defer in.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := makeDirs(filepath.Dir(h.Name)); err != nil {
			return err
		}
		if err := os.WriteFile(h.Name, content, 0o600); err != nil {
			return err
		}
	}
}

// runKernel is process 1 of a guest: it mounts the disks, joins the networks, serves commands, and
// runs the programs of a node.
func runKernel(ctx context.Context, f files, name string) error {
	err := bootGuest(ctx, f, name)
	say("the node ends: " + err.Error())
	unix.Sync()
	// A container cannot end with its node otherwise.
	return errors.Join(err, unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

func bootGuest(ctx context.Context, f files, name string) error {
	own := f.node(name)
	if err := errors.Join(os.Setenv("PATH", "/usr/bin"), os.Setenv("HOME", "/root")); err != nil {
		return err
	}
	if err := mountGuest(own); err != nil {
		return err
	}
	s, err := readSpec(f)
	if err != nil {
		return err
	}
	n, err := s.find(name)
	if err != nil {
		return err
	}
	if err := os.Setenv("PATH", s.Bin+":/usr/local/sbin:/usr/bin"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return err
	}
	if err := joinAsGuest(ctx, s, n); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	d := &daemons{mine: map[int]bool{}}
	if err := serveCommands(own, d); err != nil {
		return fmt.Errorf("serve commands: %w", err)
	}
	say("its network is there")
	return runPrograms(ctx, f, s, n, "/", d)
}

// mountGuest loads modules, mounts the filesystems of a guest, and writes the files of the seed
// disk.
func mountGuest(own nodeFiles) error {
	for _, m := range [][3]string{{"tmpfs", "/run", "mode=755"}, {"tmpfs", "/tmp", "mode=1777"},
		{"tmpfs", "/dev/shm", "mode=1777"}, {"devpts", "/dev/pts", ""}, {"cgroup2", "/sys/fs/cgroup", ""}} {
		if err := mountAt(m[0], m[1], m[0], m[2]); err != nil {
			return err
		}
	}
	// Modules that no program requests.
	modules := []string{"-a", "virtio_net", "loop", "overlay", "br_netfilter", "nf_tables"}
	if out, err := exec.Command("modprobe", modules...).CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe: %w: %s", err, out)
	}
	disks, err := guestDisks()
	if err != nil {
		return err
	}
	if err := mountAt(disks[stateDisk], own.dir, "ext4", ""); err != nil {
		return err
	}
	if err := own.removePIDs(); err != nil {
		return err
	}
	if err := errors.Join(readSeed(disks[seedDisk]), makeNodeDirs(own)); err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	for from, to := range nodeDirs {
		if err := makeDirs(to); err != nil {
			return err
		}
		if err := unix.Mount(own.of(from), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", to, err)
		}
	}
	if data := disks[dataDisk]; data != "" {
		if err := mountAt(data, StorageDir, "xfs", "prjquota"); err != nil {
			return err
		}
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// mountAt makes a directory and mounts a filesystem there.
func mountAt(source, target, fstype, data string) error {
	if err := makeDirs(target); err != nil {
		return err
	}
	if err := unix.Mount(source, target, fstype, 0, data); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// guestDisks returns the devices of this guest's disks by their serial numbers.
func guestDisks() (map[string]string, error) {
	serials, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, path := range serials {
		serial, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found[strings.TrimSpace(string(serial))] = filepath.Join("/dev", filepath.Base(filepath.Dir(path)))
	}
	for _, name := range []string{systemDisk, stateDisk, seedDisk} {
		if found[name] == "" {
			return nil, fmt.Errorf("there is no disk %q among %v", name, found)
		}
	}
	return found, nil
}

// joinAsGuest sets up the addresses of a guest's two network cards.
func joinAsGuest(ctx context.Context, s spec, n node) error {
	cable, err := cardOf(n.hardware)
	if err != nil {
		return err
	}
	inside, err := cardOf(insideHardware)
	if err != nil {
		return err
	}
	if err := ip(ctx,
		"link set lo up",
		"addr replace "+n.Address+"/24 dev "+cable,
		"link set "+cable+" up",
		"addr replace "+insideAddress+"/24 dev "+inside,
		"link set "+inside+" up",
		"route replace default via "+s.address(planeHost),
	); err != nil {
		return err
	}
	return hidePods(ctx, s)
}

// cardOf returns the network device with a hardware address.
func cardOf(hardware string) (string, error) {
	addresses, err := filepath.Glob("/sys/class/net/*/address")
	if err != nil {
		return "", err
	}
	for _, path := range addresses {
		if address, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(address)) == hardware {
			return filepath.Base(filepath.Dir(path)), nil
		}
	}
	return "", fmt.Errorf("no network card has the address %s", hardware)
}
