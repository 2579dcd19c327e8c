package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/pkg/backend"
)

// flags are the options of an agent. Those with the names of KEP-4582 have its meaning.
type flags struct {
	endpoint, listen, streamListen, streamAddress, metrics string
	tlsDir, client                                         string
	workers                                                string
	native                                                 string
	sizeLimit                                              string
	perPod, perNode, entries                               int
	idle, total                                            time.Duration

	limits archive.Limits // of the copies
}

// parse reads the command line. Errors: flag.ErrHelp after --help.
func parse(args []string, out io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("agent", flag.ContinueOnError)
	set.SetOutput(out)
	set.StringVar(&f.endpoint, "cri-endpoint", "/run/containerd/containerd.sock",
		"`Path` of the socket of the container runtime.")
	set.StringVar(&f.listen, "listen", ":9840", "`Address` of the calls.")
	set.StringVar(&f.streamListen, "stream-listen", ":9841", "`Address` of the streams.")
	set.StringVar(&f.streamAddress, "stream-address", "",
		"`Address` of the streams for callers, such as the IP of the pod and a port. Required.")
	set.StringVar(&f.metrics, "metrics-address", "127.0.0.1:9842",
		"`Address` of /metrics, /healthz and /readyz. Empty: none.")
	set.StringVar(&f.tlsDir, "tls-dir", "/etc/causeway/tls", "`Directory` with ca.crt, tls.crt and tls.key.")
	set.StringVar(&f.client, "client-name", "causeway-copy", "DNS `name` in the certificate of the only client.")
	set.StringVar(&f.workers, "worker-dir", "/worker", "`Directory` that has the program worker and nothing else.")
	set.StringVar(&f.native, "native-runtimes", "io.containerd.runc.v2",
		"`Types` of runtimes whose containers are processes of the node, separated by commas.")
	set.StringVar(&f.sizeLimit, "container-copy-size-limit", "1Gi",
		"Largest `size` of a copy: of the stream, and of all files. 0: none.")
	set.IntVar(&f.perPod, "container-copies-per-pod", 2, "Most copies of a pod at a time. 0: no limit.")
	set.IntVar(&f.perNode, "max-copies", 16, "Most copies of the node at a time. 0: no limit.")
	set.IntVar(&f.entries, "max-entries", archive.DefaultLimits().Entries,
		"Most files, directories and links of a copy.")
	set.DurationVar(&f.idle, "idle-timeout", time.Minute, "Longest `time` without data of a stream. 0: no limit.")
	set.DurationVar(&f.total, "max-duration", time.Hour, "Longest `time` of a copy.")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unknown argument %q", set.Arg(0))
	}
	return f, f.check()
}

// check returns an error for the first invalid value.
func (f *flags) check() error {
	f.limits = archive.DefaultLimits()
	f.limits.Entries = f.entries
	if f.sizeLimit != "0" {
		size, err := backend.ParseSize(f.sizeLimit)
		if err != nil {
			return fmt.Errorf("--container-copy-size-limit: %w", err)
		}
		f.limits.Bytes = size
	}
	if _, _, err := net.SplitHostPort(f.streamAddress); err != nil {
		return fmt.Errorf("--stream-address: %w", err)
	}
	switch {
	case f.perPod < 0 || f.perNode < 0:
		return errors.New("--container-copies-per-pod and --max-copies must not be negative")
	case f.entries < 1:
		return errors.New("--max-entries must be at least 1")
	case f.idle < 0 || f.total <= 0:
		return errors.New("--idle-timeout must not be negative, and --max-duration must be positive")
	case f.client == "":
		return errors.New("--client-name is empty: any certificate of the CA would be accepted")
	case f.native == "" || strings.Contains(","+f.native+",", ",,"):
		return errors.New("--native-runtimes has an empty name")
	}
	return nil
}
