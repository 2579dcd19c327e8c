package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/figures"
)

// node measures the processes of every node, after a kubelet has registered the driver and probed
// it for a while.
func (b *bench) node(ctx context.Context) error {
	dir, err := os.MkdirTemp(b.dir, "r")
	if err != nil {
		return err
	}
	port := freePort()
	p, err := rig.StartProcess(b.binaries[nodeOnly], nil, "--controllers=node-driver-registrar,livenessprobe",
		"--csi-address="+b.driver.Socket,
		"--node-driver-registrar-plugin-registration-path="+dir,
		"--node-driver-registrar-kubelet-registration-path="+b.driver.Socket,
		"--livenessprobe-health-port="+port)
	if err != nil {
		return err
	}
	s := &set{names: []string{nodeOnly}, processes: []*rig.Process{p}}
	defer s.kill()
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := rig.Until(short, func(ctx context.Context) error {
		return register(ctx,
			filepath.Join(dir, b.driver.Name+"-reg.sock"))
	}); err != nil {
		return fmt.Errorf("%w: %s", err, lastOf(p.Log()))
	}
	for range 10 {
		if code, body, err := rig.Get(ctx, "http://"+port+"/healthz"); err != nil || code != http.StatusOK {
			return fmt.Errorf("probe: %d %s: %w", code, body, err)
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	m, err := s.memory()
	if err != nil {
		return err
	}
	size, err := b.megabytes(nodeOnly)
	if err != nil {
		return err
	}
	b.table.alone("node binary, MB", size, figures.AtMost(20))
	b.table.alone("node binary, registrar and probe: RSS, MiB", m.rss, figures.AtMost(20))
	b.table.alone("node binary: private dirty, MiB", m.dirty)
	return nil
}

// register does the kubelet's part for a socket in its directory.
func register(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	kubelet := registration.NewRegistrationClient(conn)
	if _, err := kubelet.GetInfo(ctx, &registration.InfoRequest{}); err != nil {
		return err
	}
	_, err = kubelet.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
	return err
}
