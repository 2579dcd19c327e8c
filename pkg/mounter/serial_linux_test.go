package mounter

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
)

func TestFindDeviceBySerialNumber(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make device nodes")
	}
	sys, dev := t.TempDir(), t.TempDir()
	disk := func(name, file, serial, number string) {
		dir := filepath.Join(sys, name)
		mkdir(t, filepath.Dir(filepath.Join(dir, file)))
		write(t, filepath.Join(dir, file), serial)
		write(t, filepath.Join(dir, "dev"), number+"\n")
	}
	node := func(name string, minor uint32) {
		mkdir(t, filepath.Dir(filepath.Join(dev, name)))
		if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFBLK|0o600, int(unix.Mkdev(254, minor))); err != nil {
			t.Skip(err)
		}
	}
	disk("vda", "serial", "one\n", "254:0")
	disk("nvme0n1", "device/serial", "two  \n", "254:1")
	disk("nvme0c0n1", "device/serial", "two  \n", "254:8") // a path of nvme0n1
	write(t, filepath.Join(sys, "nvme0c0n1", "hidden"), "1\n")
	disk("sda", "device/vpd_pg80", "\x00\x80\x00\x05three", "254:2")
	disk("vdb", "serial", "twice", "254:3")
	disk("vdc", "serial", "twice", "254:4")
	disk("cciss!c0d0", "serial", "slash", "254:5")
	disk("vdd", "serial", "no node", "254:6")
	disk("vde", "serial", "wrong node", "254:7")
	mkdir(t, filepath.Join(sys, "loop0"))
	for i, name := range []string{"vda", "nvme0n1", "sda", "vdb", "vdc", "cciss/c0d0"} {
		node(name, uint32(i))
	}
	node("vde", 99)
	write(t, filepath.Join(sys, "vda", "diskseq"), "7\n")
	sequences := map[string]uint64{"vda": 7}
	look := finder{sys, dev, &inflight.Group[string, identity]{}}
	for serial, want := range map[string]string{"one": "vda", "two": "nvme0n1", "three": "sda", "slash": "cciss/c0d0"} {
		got, sequence, err := look.find(context.Background(), serial)
		if err != nil || got != filepath.Join(dev, want) || sequence != sequences[want] {
			t.Errorf("%s: %q, %d, %v, want %s, %d", serial, got, sequence, err, want, sequences[want])
		}
	}
	for serial, tc := range map[string]struct {
		missing bool
		says    string
	}{
		"twice": {false, "vdb, vdc"}, "": {false, "empty"}, "none": {true, "is not attached to this node"},
		"no node": {true, "vdd is missing"}, "wrong node": {false, "not the block device"},
	} {
		got, _, err := look.find(context.Background(), serial)
		if !errors.Is(err, ErrDevice) || errors.Is(err, fs.ErrNotExist) != tc.missing ||
			!strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %q, %v, want ErrDevice with %q, fs.ErrNotExist: %v", serial, got, err, tc.says, tc.missing)
		}
	}
}

// TestFindDeviceBesideAStalledDevice: a device is stalled, and another device cannot be read.
func TestFindDeviceBesideAStalledDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make device nodes")
	}
	sys, dev := t.TempDir(), t.TempDir()
	for _, name := range []string{"vda", "vdb", "vdc"} {
		mkdir(t, filepath.Join(sys, name))
	}
	pipe := filepath.Join(sys, "vda", "serial")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	look := finder{sys, dev, &inflight.Group[string, identity]{}}
	defer func() { // let the stalled read return
		if f, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil {
			await.True(t, "no question is open", func() bool {
				f.WriteString("x")
				f.Close()
				f, err = os.OpenFile(pipe, os.O_RDWR, 0)
				return look.asks.Len() == 0
			})
			f.Close()
		}
	}()
	mkdir(t, filepath.Join(sys, "vdb", "serial")) // EISDIR
	write(t, filepath.Join(sys, "vdc", "serial"), "one")
	write(t, filepath.Join(sys, "vdc", "dev"), "254:0\n")
	if err := unix.Mknod(filepath.Join(dev, "vdc"), unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))); err != nil {
		t.Skip(err)
	}
	for range 2 {
		if got, _, err := look.find(context.Background(), "one"); err != nil || got != filepath.Join(dev, "vdc") {
			t.Errorf("find = %q, %v", got, err)
		}
	}
	_, _, err := look.find(context.Background(), "two")
	if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "vda: does not answer") ||
		!strings.Contains(err.Error(), "vdb: ") {
		t.Errorf("find = %v, want ErrNoAnswer that names vda and vdb", err)
	}
	if look.asks.Len() != 1 {
		t.Errorf("%d reads are open, want 1", look.asks.Len())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := look.find(ctx, "two"); !errors.Is(err, context.Canceled) {
		t.Errorf("find = %v, want context.Canceled", err)
	}
}

// TestIdentityOfRereadsAReplacedDisk: the serial number and the sequence number must belong to the
// same disk.
func TestIdentityOfRereadsAReplacedDisk(t *testing.T) {
	dir := t.TempDir()
	serial, sequence := filepath.Join(dir, "serial"), filepath.Join(dir, "diskseq")
	write(t, sequence, "1\n")
	if err := unix.Mkfifo(serial, 0o600); err != nil {
		t.Fatal(err)
	}
	replaced := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(serial, os.O_WRONLY, 0) // waits for the reader
		if err == nil {
			_, err = f.WriteString("one")
			err = errors.Join(err, os.WriteFile(sequence, []byte("2\n"), 0o600), os.Remove(serial),
				os.WriteFile(serial, []byte("two"), 0o600), f.Close())
		}
		replaced <- err
	}()
	got, err := identityOf(dir)
	if err := errors.Join(err, <-replaced); err != nil || got != (identity{"two", 2}) {
		t.Errorf("identityOf = %+v, %v, want two, 2", got, err)
	}
}

// TestMountRejectsAReplacedDisk: the disk that the backend has found is detached before Mount or
// Grow opens the disk.
func TestMountRejectsAReplacedDisk(t *testing.T) {
	for _, fsType := range []string{"ext4", ""} {
		t.Run(fsType, func(t *testing.T) {
			b := newLoopBench(t)
			staging := b.path("staging")
			m := Mount{Kind: BlockDevice, Source: ownLoop(t), FSType: fsType, Serial: "serial"}
			t.Cleanup(func() {
				b.Unmount(context.Background(), staging) // if the test has failed
				exec.Command("losetup", "--detach", m.Source).Run()
			})
			attach := func(name string) {
				file := filepath.Join(b.storage, name)
				write(t, file, "")
				if err := os.Truncate(file, diskSize); err != nil {
					t.Fatal(err)
				}
				attachTo(t, m.Source, file)
			}
			attach("disk")
			find := func() uint64 {
				sequence, err := sequenceIn(filepath.Join("/sys/block", filepath.Base(m.Source)))
				if err != nil || sequence == 0 {
					t.Skipf("the sequence number of %s is %d, %v", m.Source, sequence, err)
				}
				return sequence
			}
			m.Sequence = find()
			b.mount(m, staging)
			if err := b.Grow(context.Background(), m, staging); err != nil {
				t.Error(err)
			}
			b.unmount(staging)
			runTool(t, "losetup", "--detach", m.Source)
			attach("other")
			before := b.sumOf("other")
			b.refused(m, staging, ErrDevice)
			if b.sumOf("other") != before {
				t.Error("the other disk was changed")
			}
			now := m
			now.Sequence = find()
			b.mount(now, staging)
			if err := b.Grow(context.Background(), m, staging); !errors.Is(err, ErrDevice) {
				t.Errorf("Grow = %v, want ErrDevice", err)
			}
			b.unmount(staging)
		})
	}
}

// TestAnAttachedDiskIsFoundAndFormatted needs blank disks, whose serial numbers are in the
// environment. The guest of test/vm has a virtio, an NVMe and a SCSI disk.
func TestAnAttachedDiskIsFoundAndFormatted(t *testing.T) {
	serials := strings.Fields(os.Getenv("CAUSEWAY_TEST_DISKS"))
	if len(serials) == 0 {
		t.Skip("this machine has no disks for tests: make test-vm has some")
	}
	for _, serial := range serials {
		t.Run("ext4 on "+serial, func(t *testing.T) {
			b := newBench(t, realMounter(t))
			path, sequence := "", uint64(0)
			await.True(t, "the kernel finds "+serial, func() bool {
				var err error
				path, sequence, err = FindDevice(context.Background(), serial)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				return err == nil
			})
			t.Logf("%s is %s", serial, path)
			if sequence == 0 {
				t.Error("the disk has no sequence number")
			}
			m := Mount{
				Kind: BlockDevice, Source: path, FSType: "ext4", Serial: serial, Size: 64 << 20, Sequence: sequence,
			}
			for range 2 {
				b.mount(m, b.path("staging"))
				if _, err := os.Stat(b.path("staging", "file")); errors.Is(err, fs.ErrNotExist) {
					write(t, b.path("staging", "file"), "data")
				}
				if err := b.Grow(context.Background(), m, b.path("staging")); err != nil {
					t.Error(err)
				}
				b.unmount(b.path("staging"))
			}
			rescan := filepath.Join("/sys/block", filepath.Base(path), "device/rescan")
			if scsi := strings.HasPrefix(filepath.Base(path), "sd"); scsi != exists(rescan) {
				t.Errorf("%s exists: %v; only a SCSI disk has this file, which rescans the size", rescan, !scsi)
			}
			m.ReadOnly = true
			b.mount(m, b.path("staging"))
			if got := read(t, b.path("staging", "file")); got != "data" {
				t.Errorf("the file has %q", got)
			}
			b.unmount(b.path("staging"))
		})
	}
}
