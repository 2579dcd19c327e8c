package csidriver

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/internal/peertls"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// certsFlags are the flags of the command certs. A test compares docs/how-to/certificates.md with
// them.
type certsFlags struct {
	dir    string
	client string
	shared string
	nodes  []string // in the form of --node-id
	days   int
	renew  bool
	// namespace is the namespace of the secrets in the printed commands.
	namespace string
}

func (c *certsFlags) flags(set *flag.FlagSet) {
	set.StringVar(&c.dir, "dir", "",
		"Output `directory` for the CA and the certificates. Use the same directory each time.")
	set.StringVar(&c.client, "client", "causeway-router", "Router `name`, by which the nodes know the router.")
	set.StringVar(&c.shared, "shared", "", "Create one certificate with this `name` for all nodes.")
	set.Func("node", "Create a certificate for the node with this `name` (its --node-id). Separate several names with "+
		"commas, or repeat the flag.", func(list string) error {
		c.nodes = append(c.nodes, strings.Split(list, ",")...)
		return nil
	})
	set.IntVar(&c.days, "days", 365, "Validity of the certificates, in days. The CA is valid for ten years.")
	set.StringVar(&c.namespace, "namespace", "causeway",
		"Kubernetes `namespace` of the secrets in the printed commands.")
	set.BoolVar(&c.renew, "renew", false, "Replace the router's certificate and the certificates that the other flags "+
		"name, with the same CA. Without this flag, existing certificates stay.")
}

// certs runs the command certs: it creates certificates, prints commands that use them, and returns
// the exit code.
func certs(args []string, env Environment) int {
	var c certsFlags
	o, err := c.parse(args, env)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s certs: %v\n", env.Command, err)
		return exitUsage
	}
	made, err := peertls.Make(c.dir, o)
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s certs: %v\n", env.Command, err)
		return exitError
	}
	for _, m := range made {
		c.print(env.Stdout, m)
	}
	return exitOK
}

// parse parses the flags, and checks everything that can be checked without access to the machine.
func (c *certsFlags) parse(args []string, env Environment) (peertls.MakeOptions, error) {
	set := flag.NewFlagSet("certs", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	c.flags(set)
	o := peertls.MakeOptions{}
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(env.Stderr, "%s certs creates certificates for the router and for nodes. Its flags:\n", env.Command)
		listFlags(set, env.Stderr)
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (--help lists the flags)", err)
	case set.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag: flags start with --, and switches take no value after a space",
			set.Arg(0))
	case c.dir == "":
		return o, errors.New("--dir is required: the directory for the CA and the certificates")
	case c.days < 1 || c.days > maxDays:
		return o, fmt.Errorf("invalid --days %d: must be from 1 to %d, the validity of the CA", c.days, maxDays)
	case c.namespace == "":
		return o, errors.New("invalid --namespace \"\": must be the namespace of the secrets")
	case c.client == "":
		return o, errors.New("invalid --client \"\": must be the name by which the nodes know the router")
	}
	for _, node := range c.nodes {
		if err := volumeid.CheckNode(node); err != nil {
			return o, fmt.Errorf("--node=%s: %w", node, err)
		}
		o.Nodes = append(o.Nodes, volumeid.NodeID(node))
	}
	o.Client, o.Shared, o.Renew = c.client, c.shared, c.renew
	o.Valid = time.Duration(c.days) * 24 * time.Hour
	return o, nil
}

// maxDays is the validity of a CA.
const maxDays = 3650

// print reports that a certificate was created or already existed, with the command that uses it.
func (c *certsFlags) print(out io.Writer, m peertls.Made) {
	state := "kept"
	switch {
	case m.New:
		state = "created"
	case time.Now().After(m.Until):
		state = "expired, replace with --renew:"
	}
	fmt.Fprintf(out, "%s %s %s in %s, valid until %s\n", state, m.Kind, m.Name, m.Dir,
		m.Until.UTC().Format(time.DateOnly))
	switch m.Kind {
	case peertls.KindCA:
		fmt.Fprintf(out, "  %s signs for every node: keep it outside of every cluster\n",
			filepath.Join(m.Dir, "ca.key"))
	case peertls.KindRouter:
		fmt.Fprint(out, c.secret("causeway-router-tls", m.Dir))
	case peertls.KindShared:
		fmt.Fprint(out, c.secret("causeway-nodes-tls", m.Dir))
	case peertls.KindNode:
		fmt.Fprint(out, c.secret("causeway-node-"+strings.ToLower(strings.ReplaceAll(m.Name, "_", "-"))+"-tls", m.Dir))
	}
}

// secret returns the command that creates or updates a secret from the files in dir.
func (c *certsFlags) secret(name, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  kubectl -n %s create secret generic %s --type=kubernetes.io/tls", quoted(c.namespace), name)
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		fmt.Fprintf(&b, " --from-file=%s", quoted(filepath.Join(dir, file)))
	}
	return b.String() + " --dry-run=client -o yaml | kubectl apply -f -\n"
}

// quoted returns s quoted for a shell.
func quoted(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
