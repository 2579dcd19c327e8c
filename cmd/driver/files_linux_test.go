package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/flood"
)

// TestConnectionFloodsLeaveFilesForCSI: while other programs connect to the ports of the driver,
// its CSI calls still find free file descriptors.
func TestConnectionFloodsLeaveFilesForCSI(t *testing.T) {
	const files = 256
	bin, dir := build(t), newDir(t)
	certs := filepath.Join(dir, "certs")
	if out, err := exec.Command(bin, "certs", "--dir="+certs, "--node=n").CombinedOutput(); err != nil {
		t.Fatalf("certs: %v\n%s", err, out)
	}
	limited := filepath.Join(dir, "limited")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d || exit 1\nexec %s \"$@\"\n", files, bin)
	if err := os.WriteFile(limited, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p := start(t, limited, dir, "--mode=node", "--peer-listen=127.0.0.1:0",
		"--peer-certs="+filepath.Join(certs, "nodes", "n"), "--http-endpoint=127.0.0.1:0")
	if ready, err := p.probe(); !ready || err != nil {
		t.Fatalf("Probe = %v, %v: %s", ready, err, p.said())
	}
	for _, message := range []string{"serving metrics", "serving the router"} {
		m := regexp.MustCompile(message + `" endpoint=(\S+)`).FindStringSubmatch(p.said())
		if m == nil {
			t.Fatalf("no %q: %s", message, p.said())
		}
		flood.Run(t, m[1], "127.0.0.1", files, "")
		flood.Run(t, m[1], "127.0.0.1", files, "\x16\x03\x01")
	}
	for i := range 30 {
		if err := p.inline(fmt.Sprintf("csi-%064x", i)); err != nil {
			t.Fatalf("call %d: %v\n%s", i, err, p.said())
		}
	}
	if said := p.said(); strings.Contains(said, "too many open files") {
		t.Error(said)
	}
}

// inline publishes an inline volume and unpublishes it, each on a connection of its own, as the
// kubelet does.
func (p *process) inline(id string) error {
	target := filepath.Join(p.dir, "kubelet", "pods", "1", "volumes", "kubernetes.io~csi", "v", "mount")
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	call := func(f func(context.Context, csi.NodeClient) error) error {
		conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "csi.sock"),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(await.Context(p.T), csi.NewNodeClient(conn))
	}
	err := call(func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: target,
			VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Mi"},
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			},
		})
		return err
	})
	if err != nil {
		return err
	}
	return call(func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		return err
	})
}
