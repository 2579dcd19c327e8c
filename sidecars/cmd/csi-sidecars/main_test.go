package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// intro is the beginning of the page of flags.
const intro = `# Flags of csi-sidecars

For operators of csi-sidecars. ` + "`make generate-flags`" + ` writes this page from the command; a test compares
both. ` + "`csi-sidecars help`" + ` prints the same. [csi-sidecars](../explanation/csi-sidecars.md#flags) explains the
prefixes. ` + "`csi-sidecars-node`" + ` has the flags of the whole process (without those of the API server and with
fewer log formats), livenessprobe and node-driver-registrar.

`

// TestTheFlagsPageIsTrue compares docs/reference/sidecar-flags.md with the flags, or writes it.
func TestTheFlagsPageIsTrue(t *testing.T) {
	const path = "../../../docs/reference/sidecar-flags.md"
	page := bytes.NewBufferString(intro)
	command().Markdown(page)
	if os.Getenv("CAUSEWAY_GENERATE") != "" {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, page.Bytes()) {
		t.Errorf("%s is not what the command says: run make generate-flags", path)
	}
}

// TestTheRoutersFlagsWorkHere: the flags in deploy/sidecars for upstream's binaries, with prefixes,
// are a valid command line.
func TestTheRoutersFlagsWorkHere(t *testing.T) {
	args := []string{"--controllers=provisioner,snapshotter,resizer", "--leader-election"}
	for _, controller := range []string{"provisioner", "snapshotter", "resizer"} {
		text, err := os.ReadFile("../../../deploy/sidecars/csi-" + controller + ".args")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if flag, ok := strings.CutPrefix(line, "--"); ok && !slices.Contains(args, line) {
				args = append(args, "--"+controller+"-"+flag)
			}
		}
	}
	if len(args) < 10 {
		t.Fatalf("only %q", args)
	}
	if err := command().Check(args); err != nil {
		t.Errorf("%q: %v", args, err)
	}
}

func TestTheKEPsCommandLinesAreRead(t *testing.T) {
	for _, args := range [][]string{
		{"--csi-address=unix:/csi/csi.sock", "--controllers=attacher,provisioner,resizer,snapshotter",
			"--feature-gates=Topology=true", "--leader-election",
			"--leader-election-namespace=kube-system", "--timeout=30s", "--attacher-timeout=30s", "--attacher-worker-thread=100", "--provisioner-timeout=30s"},
		{"--csi-address=unix:/csi/csi.sock", "--controllers=node-driver-registrar",
			"--kubelet-registration-path=/var/lib/kubelet/plugins/driver/csi.sock"},
	} {
		if err := command().Check(args); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestErrorsOfTheCommandLineNameTheRemedy(t *testing.T) {
	for _, c := range []struct{ name, args, mend string }{
		{"an unknown flag", "--controllers=attacher --atacher-timeout=3s", "is --attacher-timeout meant?"},
		{"an unknown controller", "--controllers=attacher,scheduler",
			`unknown controller "scheduler": must be one of attacher, provisioner`},
		{"a flag of a controller that is off", "--controllers=attacher --resizer-workers=3",
			"resizer is off: add it to --controllers"},
		{"a flag that only controllers that are off have", "--controllers=attacher --strict-topology",
			"a flag of provisioner only"},
		{"a prefix on a flag for all", "--controllers=attacher --attacher-kubeconfig=/x",
			"--kubeconfig is one for the whole process"},
		{"nothing to run", "--controllers=-attacher", "leaves nothing to run"},
		{"on and off", "--controllers=attacher,-attacher", "both attacher and -attacher"},
		{"an election of nobody", "--controllers=livenessprobe --leader-election",
			"no controller that is on is ever elected"},
		{"a mode without election", "--controllers=attacher --leader-election-mode=per-controller",
			"add --leader-election"},
		{"one on each node and one for all", "--controllers=provisioner --leader-election --node-deployment",
			"Take one away"},
		{"a renewal after the lease's end",
			"--controllers=attacher --leader-election --leader-election-renew-deadline=20s", "must be longer than"},
		{"capacity flags without capacity", "--controllers=provisioner --capacity-threads=4",
			"without --enable-capacity"},
		{"two names for one port", "--controllers=attacher --metrics-address=:1 --http-endpoint=:2",
			"set only --http-endpoint"},
		{"no workers", "--controllers=attacher --worker-threads=0", "must be above zero"},
		{"an unknown gate", "--controllers=attacher --feature-gates=Nothing=true", "unrecognized feature gate"},
		{"a gate that cannot be off", "--controllers=attacher --feature-gates=ReleaseLeaderElectionOnExit=false",
			"take it away"},
		{"a registrar that does not say where", "--controllers=node-driver-registrar", "kubelet-registration-path"},
		{"no socket", "--controllers=attacher --csi-address=", "say where the driver's socket is"},
		{"a network address", "--controllers=attacher --csi-address=tcp://1.2.3.4:5",
			"only sockets in the file system"},
		{"a value without its flag", "--controllers attacher provisioner", "flags are --name=value"},
		{"a metrics path over health", "--controllers=attacher --metrics-path=/healthz",
			"neither /readyz nor below /healthz"},
		{"a value that is none", "--controllers=attacher --timeout=soon", "soon"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := command().Check(strings.Fields(c.args))
			if err == nil || !strings.Contains(err.Error(), c.mend) {
				t.Errorf("%s: %v, want %q in it", c.args, err, c.mend)
			}
		})
	}
}
