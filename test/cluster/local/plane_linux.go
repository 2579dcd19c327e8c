package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/controlplane"
	"github.com/causeway-csi/causeway/test/cluster/process"
	"github.com/causeway-csi/causeway/test/cluster/windows"
	"golang.org/x/sys/unix"
)

// runPlane is the init process of the control plane: it makes the network that connects the nodes,
// runs the components, and gives each node its keys. runPlane ends with an error only.
func runPlane(ctx context.Context, f files, s spec) error {
	if err := ownProc(); err != nil {
		return err
	}
	os.Setenv("PATH", s.Bin+":/usr/sbin:/usr/bin:/sbin:/bin")
	if err := planeNetwork(ctx, s); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	p, err := controlplane.Start(ctx, controlplane.Options{
		Log: os.Stderr, Bin: s.Bin, Dir: f.plane(), Bind: s.address(planeHost), Port: apiPort,
		Advertise: s.address(planeHost), ServiceCIDR: services,
		Scheduler: true, Controllers: []string{"*", "-node-ipam-controller"},
		// A node that is silent is given up sooner than after 50 s: tests wait for it.
		ControllerManagerArgs: []string{"--node-monitor-grace-period=20s"},
		// The plane routes to pods but not to the addresses of services: aggregated API servers are
		// reached at those of their pods.
		APIServerArgs: []string{"--enable-aggregator-routing=true"},
	})
	if err != nil {
		return err
	}
	for _, n := range s.nodes() {
		if err := admit(p, f.node(n.Name), n); err != nil {
			return fmt.Errorf("keys of %s: %w", n.Name, err)
		}
	}
	if err := p.WriteKubeconfig(f.kubeconfig(), "admin", "system:masters"); err != nil {
		return err
	}
	failed := func() error { return p.Err() }
	if s.Windows > 0 {
		kwok, err := simulate(f, s)
		if err != nil {
			return err
		}
		failed = func() error { return errors.Join(p.Err(), kwok.Err()) }
	}
	if err := os.WriteFile(f.ready(), nil, 0o644); err != nil {
		return err
	}
	for { // a plane that lacks a part is none
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), p.Close())
		case <-time.After(time.Second):
			if err := failed(); err != nil {
				return err
			}
		}
	}
}

// ownProc shows the processes of this namespace in /proc, to this namespace only.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// planeNetwork makes the bridge, and knows the way to every node's pods.
func planeNetwork(ctx context.Context, s spec) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	lines := []string{
		"link set lo up",
		"link add " + bridge + " address " + s.hardware(planeHost) + " type bridge",
		"addr add " + s.address(planeHost) + "/24 dev " + bridge,
		"link set " + bridge + " up",
	}
	for _, n := range s.nodes() {
		lines = append(lines, "route add "+n.Pods+" via "+n.Address)
	}
	return ip(ctx, lines...)
}

// admit makes the node's credentials for the API server.
func admit(p *controlplane.Plane, own nodeFiles, n node) error {
	if err := os.WriteFile(own.of("ca.crt"), p.CA.Cert, 0o644); err != nil {
		return err
	}
	serving, err := p.CA.Server("system:node:"+n.Name, n.Name, n.Address)
	if err != nil {
		return err
	}
	if _, err := serving.Write(own.dir, "kubelet"); err != nil {
		return err
	}
	if err := p.WriteKubeconfig(own.of("kubelet.kubeconfig"), "system:node:"+n.Name, "system:nodes"); err != nil {
		return err
	}
	// Written last: the node waits for this file.
	whole := own.of("kube-proxy.kubeconfig")
	if err := p.WriteKubeconfig(whole+".part", "system:kube-proxy"); err != nil {
		return err
	}
	return os.Rename(whole+".part", whole)
}

// simulate runs kwok, which plays the kubelets of simulated nodes.
func simulate(f files, s spec) (process.Process, error) {
	args, err := windows.KwokArgs(f.kubeconfig(), f.plane())
	if err != nil {
		return nil, err
	}
	os.Setenv("KWOK_WORKDIR", f.plane()) // prevents the use of a user's configuration of kwok
	return process.Start(process.Command{
		Name: "kwok", Dir: f.plane(), Log: filepath.Join(f.plane(),
			"kwok.log"), Argv: append([]string{filepath.Join(s.Bin, "kwok")}, args...),
	})
}
