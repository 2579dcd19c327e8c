package disk

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/inflight"
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
		if !errors.Is(err, mounter.ErrDevice) || errors.Is(err, fs.ErrNotExist) != tc.missing ||
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
	if !errors.Is(err, mounter.ErrNoAnswer) || !strings.Contains(err.Error(), "vda: does not answer") ||
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
