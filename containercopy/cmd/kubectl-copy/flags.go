package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/client"
	"github.com/causeway-csi/causeway/containercopy/place"
)

const usage = `Copy files and directories to and from containers.

  kubectl copy [NAMESPACE/]POD:/PATH PATH
  kubectl copy PATH [NAMESPACE/]POD:/PATH

Paths in a container are absolute. The path - is a tar stream on standard input or output. A path to a
directory that ends with /. means the content of the directory, but not beside -. An existing file is not
replaced without --overwrite. Exit codes: 0 copied; 1 error; 2 invalid command line, or no such local file
or directory; 75 too many copies: retry later.

`

// command is a command line.
type command struct {
	from, to  client.Spec
	container string
	checksum  string
	preserve  []string
	overwrite string
	links     string
	progress  string
	timeout   time.Duration
	version   bool
	help      bool

	kubeconfig string
	overrides  clientcmd.ConfigOverrides
}

// overwrites are the values of --overwrite.
var overwrites = map[string]place.Overwrite{options.Never: place.Never, options.Files: place.Files,
	options.Tree: place.Tree}

// flags returns the flags of a command, whose usage is printed to out.
func (c *command) flags(out io.Writer) *pflag.FlagSet {
	fs := pflag.NewFlagSet("kubectl copy", pflag.ContinueOnError)
	fs.SetOutput(out)
	fs.SortFlags = false
	fs.Usage = func() { fmt.Fprint(out, usage, "Flags:\n", fs.FlagUsages()) }
	fs.StringVarP(&c.container, "container", "c", "", "name of the container; default: as for kubectl exec")
	fs.StringVar(&c.checksum, "checksum", "crc32c", "checksum of both sides: crc32c or sha256")
	fs.StringSliceVar(&c.preserve, "preserve", nil, "attributes that the copy keeps: mode (permissions), times, owner")
	fs.StringVar(&c.overwrite, "overwrite", options.Never, "never; files: replace files, and add to directories; "+
		"tree: replace files and directories; the content of a directory, DIR/., is added")
	fs.StringVar(&c.links, "links", "inside", "links from a container: inside: those that stay in the copy; all")
	fs.StringVar(&c.progress, "progress", "auto", "auto: on a terminal; plain: in lines; none")
	fs.DurationVar(&c.timeout, "timeout", 0, "longest time of the copy; 0: no limit")
	fs.BoolVar(&c.version, "version", false, "print the version")
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&c.overrides, fs, clientcmd.RecommendedConfigOverrideFlags(""))
	fs.Lookup("request-timeout").Hidden = true // it would end the stream
	return fs
}

// parse parses a command line. Errors: client.ErrUsage.
func parse(args []string, out io.Writer) (*command, error) {
	c := new(command)
	fs := c.flags(out)
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		c.help = true
		return c, nil
	case err != nil:
		return c, fmt.Errorf("%w: %w", client.ErrUsage, err)
	case c.version:
		return c, nil
	}
	if err := c.check(); err != nil { // first: --overwrite takes the next argument as its value
		return c, err
	}
	if fs.NArg() != 2 {
		return c, fmt.Errorf("%w: %d arguments, want a source and a destination: see --help", client.ErrUsage,
			fs.NArg())
	}
	var err error
	if c.from, c.to, err = client.ParseSpecs(fs.Arg(0), fs.Arg(1), runtime.GOOS == "windows"); err != nil {
		return c, err
	}
	return c, c.checkNamespace()
}

// check returns an error for the first invalid value of a flag.
func (c *command) check() error {
	for _, f := range []struct {
		name, value string
		values      []string
	}{
		{"checksum", c.checksum, []string{"crc32c", "sha256"}},
		{"overwrite", c.overwrite, []string{options.Never, options.Files, options.Tree}},
		{"links", c.links, []string{"inside", "all"}}, {"progress", c.progress, []string{"auto", "plain", "none"}},
	} {
		if !slices.Contains(f.values, f.value) {
			return fmt.Errorf("%w: invalid --%s %q: must be %s", client.ErrUsage, f.name, f.value,
				strings.Join(f.values, ", "))
		}
	}
	for _, p := range c.preserve {
		if !slices.Contains([]string{"mode", "times", "owner"}, p) {
			return fmt.Errorf("%w: invalid --preserve %q: must be mode, times, owner", client.ErrUsage, p)
		}
	}
	if c.timeout < 0 {
		return fmt.Errorf("%w: invalid --timeout %s: must not be negative", client.ErrUsage, c.timeout)
	}
	return nil
}

// checkNamespace returns an error for an invalid namespace, or for two of them.
func (c *command) checkNamespace() error {
	namespace := c.overrides.Context.Namespace
	switch pod := c.pod(); {
	case namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0:
		return fmt.Errorf("%w: invalid --namespace %q", client.ErrUsage, namespace)
	case namespace != "" && pod.Namespace != "" && pod.Namespace != namespace:
		return fmt.Errorf("%w: the namespaces %q and %q differ", client.ErrUsage, pod.Namespace, namespace)
	}
	return nil
}

// pod returns the argument that is in a container.
func (c *command) pod() client.Spec {
	if c.from.Local() {
		return c.to
	}
	return c.from
}

// preserves reports whether the copy keeps an attribute.
func (c *command) preserves(attribute string) bool { return slices.Contains(c.preserve, attribute) }

// options returns the options of the near side. The limits are those of the agent: this side
// accepts every size.
func (c *command) options(r *report) client.Options {
	limits := archive.DefaultLimits()
	limits.Bytes, limits.Entries = 0, 1<<31-1
	return client.Options{Limits: limits, SHA256: c.checksum == "sha256", Overwrite: overwrites[c.overwrite],
		Mode: c.preserves("mode"), Times: c.preserves("times"), Owner: c.preserves("owner"), Links: c.links == "all",
		Warn: r.warn, Progress: r.note}
}
