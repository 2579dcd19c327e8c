package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/causeway-csi/causeway/internal/freeport"
)

// Directories of the driver, in Wine.
const (
	ownDir  = `C:\causeway-test`
	kubelet = ownDir + `\kubelet`
	root    = ownDir + `\root`
)

// server is the driver as a process under Wine, with a client on Linux.
type server struct {
	p       *prefix
	program string // path
	address string
	cmd     *exec.Cmd
	log     bytes.Buffer // to be read when the process has ended
	conn    *grpc.ClientConn
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
}

// runDriver builds the driver, and uses it as the kubelet and the sidecars do. want are the specs
// of csi-sanity on Linux. The result is that of csi-sanity.
func runDriver(ctx context.Context, p *prefix, want specs) (result *row, err error) {
	s := &server{p: p, program: filepath.Join(p.path(ownDir), "driver.exe")}
	for _, dir := range []string{kubelet, root} {
		if err := os.MkdirAll(p.path(dir), 0o700); err != nil {
			return nil, err
		}
	}
	arguments := slices.Concat([]string{"build"}, wineBuild, []string{"-o", s.program, module + "cmd/driver"})
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Env = append(os.Environ(), windows...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("build the driver: %w: %s", err, out))
	}
	defer func() {
		if s.cmd != nil {
			s.kill()
		}
		if err != nil {
			err = fmt.Errorf("%w\nthe driver's log:\n%s", err, s.log.String())
		}
	}()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	j := &journey{server: s, ctx: ctx}
	if err := j.run(); err != nil {
		return nil, fmt.Errorf("%s: %w", j.step, err)
	}
	fmt.Printf("driver.exe: %d steps passed\n", j.steps)
	return runSanity(s, want)
}

// start starts the driver, and waits until it is ready.
func (s *server) start(ctx context.Context) error {
	var err error
	if s.address, err = freeport.Address(); err != nil {
		return err
	}
	s.cmd = s.p.command(ctx, "wine", s.program, "--endpoint=tcp://"+s.address, "--allow-tcp", "--node-id=node-1",
		"--kubelet-dir="+kubelet, "--root="+root, "--init-root")
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	if s.conn, err = grpc.NewClient("dns:///"+s.address, plain); err != nil {
		return err
	}
	s.IdentityClient = csi.NewIdentityClient(s.conn)
	s.ControllerClient, s.NodeClient = csi.NewControllerClient(s.conn), csi.NewNodeClient(s.conn)
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the driver is not ready after a minute"))
	defer cancel()
	for {
		resp, err := s.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && resp.GetReady().GetValue() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: Probe: %v, %w", context.Cause(ctx), resp, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// kill ends the driver at once, in the middle of its work if it has any.
func (s *server) kill() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.cmd.Cancel() // Wait reports that the process was killed
	s.cmd.Wait()
	s.cmd = nil
}

// linux returns the path outside of Wine of a path of a request, which csi-sanity ends with
// /target.
func (s *server) linux(windows string) string {
	return s.p.path(strings.ReplaceAll(windows, "/", `\`))
}
