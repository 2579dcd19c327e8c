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

// certsFlags are the flags of the command certs. docs/how-to/certificates.md is made from their
// usage.
type certsFlags struct {
	dir    string
	client string
	shared string
	nodes  []string // as --node-id has them
	days   int
	renew  bool
	// namespace is where the printed commands make secrets.
	namespace string
}

func (c *certsFlags) flags(set *flag.FlagSet) {
	set.StringVar(&c.dir, "dir", "", "`directory` for the CA and the certificates; say the same one each time")
	set.StringVar(&c.client, "client", "causeway-router", "`name` of the router, by which nodes know it")
	set.StringVar(&c.shared, "shared", "", "make one certificate with this `name` for all nodes")
	set.Func("node", "make a certificate for the node with this `name`, as its --node-id has it; several with "+
		"commas, or by saying it again", func(list string) error {
		c.nodes = append(c.nodes, strings.Split(list, ",")...)
		return nil
	})
	set.IntVar(&c.days, "days", 365, "how many days certificates are valid; the CA is for ten years")
	set.StringVar(&c.namespace, "namespace", "causeway",
		"`namespace` in which the commands that are printed make secrets")
	set.BoolVar(&c.renew, "renew", false,
		"replace the router's certificate and those that are named, with the same CA; without it, what is there stays")
}

// certs is the command certs: it makes certificates, and prints commands that use them. certs
// returns the exit code.
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
		c.tell(env.Stdout, m)
	}
	return exitOK
}

// parse reads the flags, and checks all that can be checked without touching the machine.
func (c *certsFlags) parse(args []string, env Environment) (peertls.MakeOptions, error) {
	set := flag.NewFlagSet("certs", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	c.flags(set)
	o := peertls.MakeOptions{}
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(env.Stderr, "%s certs makes certificates for the router and for nodes. Its flags:\n", env.Command)
		listFlags(set, env.Stderr)
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (--help lists the flags)", err)
	case set.NArg() > 0:
		return o, fmt.Errorf("%q is no flag: flags start with --, and switches take no value after a space", set.Arg(0))
	case c.dir == "":
		return o, errors.New("--dir is needed: it says where the CA and the certificates are")
	case c.days < 1 || c.days > maxDays:
		return o, fmt.Errorf("--days=%d: from 1 to %d, for which the CA is valid", c.days, maxDays)
	case c.namespace == "":
		return o, errors.New("--namespace is empty: secrets are in one")
	case c.client == "":
		return o, errors.New("--client is empty: nodes know the router by its name")
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

// maxDays is for how long a CA is valid.
const maxDays = 3650

// tell says what was made or was there, and what to do with it.
func (c *certsFlags) tell(out io.Writer, m peertls.Made) {
	state := "kept"
	switch {
	case m.New:
		state = "made"
	case time.Now().After(m.Until):
		state = "expired, and --renew is needed for:"
	}
	fmt.Fprintf(out, "%s %s %s in %s, valid until %s\n", state, m.Kind, m.Name, m.Dir,
		m.Until.UTC().Format(time.DateOnly))
	switch m.Kind {
	case peertls.KindCA:
		fmt.Fprintf(out, "  %s signs for every node: keep it where no cluster is\n", filepath.Join(m.Dir, "ca.key"))
	case peertls.KindRouter:
		fmt.Fprint(out, c.secret("causeway-router-tls", m.Dir))
	case peertls.KindShared:
		fmt.Fprint(out, c.secret("causeway-nodes-tls", m.Dir))
	case peertls.KindNode:
		fmt.Fprint(out, c.secret("causeway-node-"+strings.ToLower(strings.ReplaceAll(m.Name, "_", "-"))+"-tls", m.Dir))
	}
}

// secret returns the command that makes a secret of what is in dir, or brings it up to date.
func (c *certsFlags) secret(name, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  kubectl -n %s create secret generic %s --type=kubernetes.io/tls", quoted(c.namespace), name)
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		fmt.Fprintf(&b, " --from-file=%s", quoted(filepath.Join(dir, file)))
	}
	return b.String() + " --dry-run=client -o yaml | kubectl apply -f -\n"
}

// quoted returns s as a shell reads it.
func quoted(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
