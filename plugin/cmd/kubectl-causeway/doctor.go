package main

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/doctor"
	"github.com/causeway-csi/causeway/plugin/internal/probe"
)

// Defaults of the chart.
const (
	defaultNamespace = "causeway"
	defaultDriver    = "hostpath.csi.causeway.dev"
	defaultSMBDriver = "smb.csi.causeway.dev"
	defaultRoot      = "/var/lib/causeway"
	defaultKubelet   = "/var/lib/kubelet"
	defaultImage     = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
)

// preFlags are the flags of doctor --pre.
type preFlags struct {
	pre, nodes, smb      bool
	root, kubelet, image string
	nodeSelector         string
	given                func(flag string) bool
}

func doctorCommand() command {
	f := &preFlags{}
	return command{
		usage: "Find faults of an installation, with cause, evidence, remedy and page.\n\n" +
			"  kubectl causeway doctor\n" +
			"  kubectl causeway doctor --pre [--nodes]    before the installation\n\n" +
			"Exit codes: 0 no finding; 1 findings; 2 no finding, but a check could not run, or an invalid command " +
			"line.\n",
		flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&f.pre, "pre", false, "check whether the driver can be installed in --namespace, default "+
				defaultNamespace)
			fs.BoolVar(&f.nodes, "nodes", false, "with --pre: read the directories and modules of each Linux node by "+
				"a short-lived pod in --namespace, which must exist")
			fs.BoolVar(&f.smb, "smb", false, "with --pre: check the requirements of smb.enabled, too")
			fs.StringVar(&f.nodeSelector, "node-selector", "", "with --pre: labels of the nodes to check, as those of "+
				"hostpath.node.nodeSelector; default: all nodes")
			fs.StringVar(&f.root, "root", defaultRoot, "with --pre: hostpath.root")
			fs.StringVar(&f.kubelet, "kubelet-dir", defaultKubelet, "with --pre: kubeletDir")
			fs.StringVar(&f.image, "image", defaultImage, "with --nodes: image with sh, uname, ls and grep")
			f.given = fs.Changed
		},
		run: func(ctx context.Context, s session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			if f.pre {
				return s.before(ctx, f)
			}
			for _, flag := range []string{"nodes", "node-selector", "smb", "root", "kubelet-dir", "image"} {
				if f.given(flag) {
					return fmt.Errorf("%w: --%s needs --pre", errUsage, flag)
				}
			}
			v, err := cluster.Gather(ctx, s.client, s.selection)
			if err != nil {
				fmt.Fprintf(s.err, "kubectl causeway: could not check: %v\n", err)
				return errCode(doctor.CodeNotChecked)
			}
			return s.report(doctor.Run(v, doctor.Checks()))
		},
	}
}

// cleanPath are paths that the script of the probe can handle.
var cleanPath = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)

// before runs the checks before an installation.
func (s session) before(ctx context.Context, f *preFlags) error {
	for flag, dir := range map[string]string{"root": f.root, "kubelet-dir": f.kubelet} {
		if !cleanPath.MatchString(dir) || path.Clean(dir) != dir {
			return fmt.Errorf("%w: invalid --%s %q: must be an absolute path of letters, digits and . _ -, and not /",
				errUsage, flag, dir)
		}
	}
	nodes, err := labels.Parse(f.nodeSelector)
	if err != nil {
		return fmt.Errorf("%w: invalid --node-selector %q: must be a label selector such as key=value: %w", errUsage,
			f.nodeSelector, err)
	}
	plan := cluster.Plan{Namespace: cmp.Or(s.selection.Namespace, defaultNamespace), SMB: f.smb, Root: f.root,
		Kubelet: f.kubelet, NodeSelector: nodes, Drivers: []string{cmp.Or(s.selection.Driver, defaultDriver)}}
	if f.smb {
		plan.Drivers = append(plan.Drivers, defaultSMBDriver)
	}
	if f.nodes {
		kubelets := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(probe.Kubelets), f.kubelet))))
		plan.Probe = &probe.Options{Namespace: plan.Namespace, Image: f.image, Root: f.root, Kubelets: kubelets,
			Poll: time.Second}
	}
	v := cluster.GatherBefore(ctx, s.client, plan)
	switch err := ctx.Err(); {
	case err != nil && f.nodes:
		return fmt.Errorf("%w: the pods were deleted, if the API server answered: kubectl -n %s delete pods -l %s", err,
			plan.Namespace, probe.Label)
	case err != nil:
		return err
	}
	return s.report(doctor.Run(v, doctor.ChecksBefore(plan)))
}
