// Package chart renders charts/causeway, as Helm does, and the files derived from it: deploy/linux,
// deploy/windows, and the chart's README.
package chart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/internal/manifests"
	"github.com/causeway-csi/causeway/test/cluster/components"
)

// Programs are Helm and helm-docs, of modules of their own, built once.
func Programs(ctx context.Context, log io.Writer) (string, error) {
	return components.BuildTools(ctx, log, filepath.Join(Sources(), "test", "cluster", "chart", "tools"),
		map[string]components.Tool{
			"helm":      {Module: "helm", Package: "helm.sh/helm/v4/cmd/helm"},
			"helm-docs": {Module: "helm-docs", Package: "github.com/norwoodj/helm-docs/cmd/helm-docs"},
		})
}

// Sources is the root of the sources that this was built from, which must be there still.
func Sources() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// Directory is the chart.
func Directory() string { return filepath.Join(Sources(), "charts", "causeway") }

// Helm runs Helm from bin, without files of the user, and returns its output. An error has the text
// of its standard error.
func Helm(ctx context.Context, bin string, args ...string) (string, error) {
	return HelmIn(ctx, bin, os.Environ(), args...)
}

// HelmIn is Helm with an environment, which names a cluster.
func HelmIn(ctx context.Context, bin string, env []string, args ...string) (string, error) {
	home, err := os.MkdirTemp("", "causeway-helm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "helm"), args...)
	cmd.Env = append(slices.Clip(env), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Object is a rendered object.
type Object = manifests.Object

// Render renders the chart's templates with values, for a release causeway in the namespace
// causeway.
func Render(ctx context.Context, bin string, args ...string) ([]Object, error) {
	out, err := Helm(ctx, bin, append([]string{"template", "causeway", Directory(), "--namespace=causeway",
		"--kube-version=v1.37.1"}, args...)...)
	if err != nil {
		return nil, err
	}
	return split(out)
}

var source = regexp.MustCompile(`^# Source: causeway/templates/(\S+)\n`)

// split splits the output of helm template.
func split(text string) (all []Object, err error) {
	for _, part := range strings.Split("\n"+text, "\n---\n") {
		found := source.FindStringSubmatch(part)
		if found == nil {
			if strings.TrimSpace(part) != "" {
				err = errors.Join(err, fmt.Errorf("helm does not say where this is from:\n%s", part))
			}
			continue
		}
		all = append(all, Object{Source: found[1], Text: strings.TrimSpace(part[len(found[0]):]) + "\n"})
	}
	return all, err
}

// helms are the labels and annotations that are Helm's, whose nothing in deploy is.
var helms = regexp.MustCompile(`(?m)^ +(app.kubernetes.io/(instance|managed-by)|helm.sh/chart|annotations): ` +
	`(Helm|causeway|causeway-[0-9.]+|\{helm.sh/.*)\n`)

// deployFiles are the files of deploy, and the templates that they are made of, by Helm's
// arguments.
var deployFiles = []struct {
	args  []string
	files map[string]string
}{
	{
		[]string{"--set=hostpath.certificates.source=secrets"},
		map[string]string{
			"linux/admission.yaml":  "hostpath/admission.yaml",
			"linux/classes.yaml":    "hostpath/classes.yaml",
			"linux/controller.yaml": "hostpath/controller.yaml",
			"linux/csidriver.yaml":  "hostpath/csidriver.yaml",
			"linux/node.yaml":       "hostpath/node.yaml",
			"linux/rbac.yaml":       "hostpath/rbac.yaml",
		},
	},
	{
		[]string{"--namespace=elsewhere", "--set=namespace.create=true,namespace.name=causeway"},
		map[string]string{"linux/namespace.yaml": "namespace.yaml"},
	},
	{
		[]string{"--set=hostpath.certificates.source=cert-manager"},
		map[string]string{"linux/cert-manager/certificates.yaml": "hostpath/certificates.yaml"},
	},
	{
		[]string{"--set=snapshotController.enabled=true"},
		map[string]string{"linux/snapshot-controller/rbac.yaml": "hostpath/rbac-snapshot-controller.yaml"},
	},
	{
		[]string{"--set=networkPolicy.enabled=true"},
		map[string]string{"linux/network-policy/policies.yaml": "hostpath/network-policy.yaml"},
	},
	{
		[]string{"--set-json=hostpath.volumeAttributesClasses={\"causeway-hostpath-read-ahead\": {\"direct-io\": " +
			"\"false\", \"readahead\": \"1Mi\"}}"},
		map[string]string{"linux/attributes/class.yaml": "hostpath/attributes.yaml"},
	},
	{
		[]string{"--set=hostpath.windows.enabled=true,hostpath.certificates.source=secrets"},
		map[string]string{"windows/node.yaml": "hostpath/node-windows.yaml"},
	},
}

// Files returns all that is made of the chart, by paths in the sources.
func Files(ctx context.Context, bin string) (map[string]string, error) {
	all, err := deployed(ctx, bin)
	if err != nil {
		return nil, err
	}
	if all["charts/causeway/README.md"], err = readme(ctx, bin); err != nil {
		return nil, err
	}
	configurations, err := Configurations()
	if err != nil {
		return nil, err
	}
	rendered := map[string][]Object{}
	for _, c := range configurations {
		if rendered[c.Name], err = Render(ctx, bin, c.Args...); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		for i, o := range rendered[c.Name] {
			rendered[c.Name][i].Text = secret.ReplaceAllString(o.Text, "$1: …")
		}
	}
	for name, objects := range rendered {
		if name == whole {
			all[rendering(name+".yaml")] = manifests.Full(objects)
			continue
		}
		base := cmp.Or(bases[name], whole)
		if rendered[base] == nil {
			return nil, fmt.Errorf("%s differs from %s, which is not in charts/causeway/ci", name, base)
		}
		all[rendering(name+".diff")] = manifests.Difference(base, rendered[base], objects)
	}
	return all, nil
}

// rendering returns the path in the sources of a file of a configuration.
func rendering(file string) string { return "test/cluster/chart/testdata/" + file }

// secret matches the random parts of rendered certificates.
var secret = regexp.MustCompile(`(?m)^(  (?:ca\.crt|tls\.crt|tls\.key)): .*$`)

// whole is the configuration whose rendering the sources have in full.
const whole = "default"

// bases names the configuration from which the file of another one differs, where that is not
// whole.
var bases = map[string]string{
	"attached-cloud":   "attached",
	"attached-windows": "attached",
	"smb-windows":      "smb",
	"windows-group":    "windows",
}

// Configuration is a file of values with which the chart is tried.
type Configuration struct {
	Name string
	Args []string // Helm's
}

// Configurations returns those in charts/causeway/ci.
func Configurations() (all []Configuration, err error) {
	paths, err := filepath.Glob(filepath.Join(Directory(), "ci", "*-values.yaml"))
	if err == nil && len(paths) == 0 {
		err = errors.New("charts/causeway/ci has no values")
	}
	for _, path := range paths {
		all = append(all,
			Configuration{strings.TrimSuffix(filepath.Base(path), "-values.yaml"), []string{"--values=" + path}})
	}
	return all, err
}

// readme returns the output of helm-docs for values.yaml and README.md.gotmpl.
func readme(ctx context.Context, bin string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "helm-docs"), "--dry-run", "--chart-search-root="+Directory(),
		"--log-level=warning", "--sort-values-order=file")
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		return "", fmt.Errorf("helm-docs: %w: %s", err, complaints.String())
	}
	return strings.TrimSpace(string(out)) + "\n", nil
}

// deployed returns the files of deploy that are rendered from the chart.
func deployed(ctx context.Context, bin string) (map[string]string, error) {
	all := map[string]string{}
	for _, m := range deployFiles {
		objects, err := Render(ctx, bin, m.args...)
		if err != nil {
			return nil, err
		}
		for file, template := range m.files {
			var texts []string
			for _, o := range objects {
				if o.Source == template {
					texts = append(texts, helms.ReplaceAllString(o.Text, ""))
				}
			}
			if len(texts) == 0 {
				return nil, fmt.Errorf("the chart makes nothing of %s with %q", template, m.args)
			}
			all["deploy/"+file] = "# Rendered from the chart by make chart.\n" + strings.Join(texts, "---\n")
		}
	}
	return all, nil
}
