package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// AddRuntime gives the node's containerd another runtime: program, which has the commands of runc,
// for pods whose RuntimeClass has that handler. containerd starts again. A repeated call does
// nothing.
func (n Node) AddRuntime(ctx context.Context, handler, program string) error {
	if n.guest() {
		return errors.New("a guest gets no other runtime: its containerd has the configuration of its start")
	}
	own := n.cluster.node(n.Name)
	config, err := os.ReadFile(own.of("containerd.toml"))
	if err != nil {
		return err
	}
	const runtimes = `plugins."io.containerd.cri.v1.runtime".containerd.runtimes.`
	if strings.Contains(string(config), "["+runtimes+handler+"]") {
		return nil
	}
	if err := copyFile(program, own.of(handler), 0o755); err != nil {
		return err
	}
	more := fmt.Sprintf("[%[1]s%[2]s]\n  runtime_type = \"io.containerd.runc.v2\"\n[%[1]s%[2]s.options]\n"+
		"  BinaryName = %[3]q\n  SystemdCgroup = false\n", runtimes, handler, own.of(handler))
	if err := os.WriteFile(own.of("containerd.toml"), []byte(string(config)+more), 0o644); err != nil {
		return err
	}
	if err := n.Kill("containerd"); err != nil {
		return err
	}
	return waitFor(ctx, "containerd", func() error {
		_, err := n.Run(ctx, "ctr", "version")
		return err
	})
}
