package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/gobuild"
)

// patience is how long the demo waits for anything.
const patience = 30 * time.Second

// demo is a driver process with a client.
type demo struct {
	dir, root, kubelet, socket string
	cmd                        *exec.Cmd // nil while the driver does not run
	pid                        int       // the driver's, even when it has ended
	exited                     chan error
	conn                       *grpc.ClientConn
	identity                   csi.IdentityClient
	controller                 csi.ControllerClient
	node                       csi.NodeClient
	metadata                   csi.SnapshotMetadataClient
	// the type of the filesystem that was mounted for the root, as it can share blocks; or ""
	reflinks string
}

// startDriver builds the driver and starts it on a socket in a directory of its own.
func startDriver(ctx context.Context) (*demo, error) {
	dir, err := os.MkdirTemp("", "causeway-demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{
		dir: dir, root: filepath.Join(dir, "root"), kubelet: filepath.Join(dir, "kubelet"), socket: filepath.Join(dir,
			"csi.sock"),
		exited: make(chan error, 1),
	}
	err = errors.Join(os.Mkdir(d.root, 0o700), os.Mkdir(d.kubelet, 0o750))
	if err == nil && noImages() == "" {
		err = step(ctx, "mount a filesystem that can share blocks", d.mountRoot)
	}
	if err == nil {
		err = step(ctx, "build the driver", func() (string, error) { return d.build(ctx) })
	}
	if err == nil {
		err = step(ctx, "start it, and wait until it is ready", func() (string, error) { return d.start(ctx) })
	}
	if err != nil {
		return nil, errors.Join(err, d.kill(), d.cleanUp())
	}
	return d, nil
}

// mountRoot gives the driver a root of its own with reflinks, if mkfs for such a filesystem exists.
func (d *demo) mountRoot() (string, error) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		disk := filepath.Join(d.dir, "disk")
		if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 4<<30)); err != nil {
			return "", err
		}
		if exec.Command("mkfs."+fsType, "-q", disk).Run() == nil &&
			exec.Command("mount", "-t", fsType, "-o", "loop", disk, d.root).Run() == nil {
			d.reflinks = fsType
			return fsType, nil
		}
	}
	return "there is none: images are copied while no pod uses them", nil
}

func (d *demo) build(ctx context.Context) (string, error) {
	bin := filepath.Join(d.dir, "driver")
	if err := (gobuild.Program{Package: gobuild.Driver}).Copy(ctx, bin); err != nil {
		return "", err
	}
	info, err := os.Stat(bin)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d MB", info.Size()>>20), nil
}

func (d *demo) start(ctx context.Context) (string, error) {
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(d.dir, "driver"), "--endpoint=unix://"+d.socket, "--root="+d.root, "--init-root",
		"--kubelet-dir="+d.kubelet,
		"--state-dir="+filepath.Join(d.dir, "state"), "--node-id=demo-node")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	d.cmd, d.pid = cmd, cmd.Process.Pid
	go func() { d.exited <- cmd.Wait() }()
	d.conn, err = grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	d.identity, d.controller, d.node = csi.NewIdentityClient(d.conn), csi.NewControllerClient(d.conn),
		csi.NewNodeClient(d.conn)
	d.metadata = csi.NewSnapshotMetadataClient(d.conn)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		// Until the socket is there every call fails at once.
		resp, err := d.identity.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && resp.GetReady().GetValue() {
			return "unix://" + d.socket, nil
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(err, d.logged())
		case exit := <-d.exited:
			d.cmd = nil
			return "", errors.Join(errors.New("the driver ended"), exit, d.logged())
		case <-time.After(5 * time.Millisecond):
			d.conn.ResetConnectBackoff()
		}
	}
}

// logged returns the log of the driver.
func (d *demo) logged() error {
	log, err := os.ReadFile(filepath.Join(d.dir, "log"))
	return errors.Join(err, errors.New(string(log)))
}

// terminate ends the driver as a kubelet would.
func (d *demo) terminate() (string, error) {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	select {
	case err := <-d.exited:
		d.cmd = nil
		return "exit code 0", err
	case <-time.After(patience):
		return "", errors.New("it does not end")
	}
}

// kill ends the driver if it runs still.
func (d *demo) kill() error {
	if d.cmd == nil {
		return nil
	}
	defer func() { d.cmd = nil }()
	err := d.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) { // by itself: a terminal's Ctrl-C reaches it too
		err = nil
	}
	<-d.exited
	return err
}

// nothingLeft proves that there is no mount, no loop device, no socket, no process and no file of a
// volume.
func (d *demo) nothingLeft() (string, error) {
	var files []string
	dirs := []string{d.kubelet}
	for _, dir := range []string{"volumes", "snapshots", "groups", "staging", "trash"} {
		dirs = append(dirs, filepath.Join(d.root, dir))
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if path != dir {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	if _, err := os.Lstat(d.socket); err == nil {
		files = append(files, d.socket)
	}
	if len(files) > 0 {
		return "", fmt.Errorf("left: %v", files)
	}
	if d.reflinks != "" {
		if err := syscall.Unmount(d.root, 0); err != nil {
			return "", fmt.Errorf("unmount the root: %w", err)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.dir))
	if err != nil {
		return "", err
	}
	if len(mounts) > 0 {
		return "", fmt.Errorf("%s is mounted still", mounts[0].Mountpoint)
	}
	devices, err := d.devices()
	if err != nil {
		return "", err
	}
	if len(devices) > 0 {
		return "", fmt.Errorf("loop devices are left: %v", devices)
	}
	if err := syscall.Kill(d.pid, 0); !errors.Is(err, syscall.ESRCH) {
		return "", fmt.Errorf("the driver's process, %d, still exists: %w", d.pid, err)
	}
	return "0 mounts, 0 loop devices, 0 files, 0 sockets, 0 processes", nil
}

// devices returns the loop devices that have a file of the demo.
func (d *demo) devices() ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(files, func(file string) bool {
		name, _ := os.ReadFile(file) // fails if the device has just let go
		return !strings.HasPrefix(string(name), d.dir+"/")
	}), nil
}

// trashEmptied waits until the files of deleted volumes are gone.
func (d *demo) trashEmptied() (string, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		entries, err := os.ReadDir(filepath.Join(d.root, "trash"))
		if err != nil || len(entries) == 0 {
			return "", err
		}
	}
	return "", errors.New("it does not")
}

// cleanUp removes the demo's directory. Mounts that a failed demo left in it are visible in this
// namespace only, and are unmounted first.
func (d *demo) cleanUp() error {
	if d.conn != nil {
		d.conn.Close()
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.dir))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	devices, err := d.devices()
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := detach(filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(device))))); err != nil {
			return err
		}
	}
	return os.RemoveAll(d.dir)
}

// detach detaches the file of a loop device that is no longer in use.
func detach(device string) error {
	dev, err := os.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	_, err = unix.IoctlRetInt(int(dev.Fd()), unix.LOOP_CLR_FD)
	return err
}
