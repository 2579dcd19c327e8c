// Package manifests applies deploy/linux to a real API server, in the order of
// docs/how-to/install.md.
package manifests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/test/cluster/internal/apiserver"
)

const (
	source    = "../../.." // the product's
	namespace = "causeway"
)

// scene is an API server, and a directory, Home, with copies of deploy and charts, and the
// operator's own files beside them.
type scene struct {
	apiserver.Server
	page string // docs/how-to/install.md
}

func begin(t *testing.T) *scene {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(source, "docs", "how-to", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{Server: apiserver.Start(t), page: string(page)}
	for _, dir := range []string{"deploy", "charts"} {
		if err := os.CopyFS(filepath.Join(s.Home, dir), os.DirFS(filepath.Join(source, dir))); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// try runs a shell command where the operator would, and returns the output.
func (s *scene) try(line string) (string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.Home, s.Env, time.Second // a child of the shell's may have its output still
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run is try for commands that must work.
func (s *scene) run(line string) string {
	s.Helper()
	out, err := s.try(line)
	if err != nil {
		s.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// documented makes sure that a line stands in docs/how-to/install.md, and returns it.
func (s *scene) documented(line string) string {
	s.Helper()
	if !strings.Contains(s.page, "\n"+line+"\n") {
		s.Fatalf("docs/how-to/install.md does not say %q", line)
	}
	return line
}

// overlay writes the operator's kustomization, as the page has it, without the lines that contain
// any of some words.
func (s *scene) overlay(without ...string) {
	s.Helper()
	found := regexp.MustCompile("(?s)```yaml\n(# causeway/kustomization.yaml\n.*?)```").FindStringSubmatch(s.page)
	if found == nil {
		s.Fatal("docs/how-to/install.md has no kustomization")
	}
	var lines []string
	for line := range strings.Lines(found[1]) {
		leave := false
		for _, word := range without {
			leave = leave || strings.Contains(line, word)
		}
		if !leave {
			lines = append(lines, line)
		}
	}
	s.write(strings.Join(lines, ""))
}

func (s *scene) write(kustomization string) {
	s.Helper()
	path := filepath.Join(s.Home, "causeway", "kustomization.yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(kustomization), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) deployment() *apps.Deployment {
	s.Helper()
	d, err := s.Client.AppsV1().Deployments(namespace).Get(s.Context(), "causeway-controller", meta.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

func (s *scene) daemonSet() *apps.DaemonSet {
	s.Helper()
	d, err := s.Client.AppsV1().DaemonSets(namespace).Get(s.Context(), "causeway-node", meta.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

func TestInstall(t *testing.T) {
	s := begin(t)
	for _, step := range []struct {
		name string
		run  func(*scene)
	}{
		{"without CRDs all but snapshots is applied", withoutCRDs},
		{"the CRDs of snapshots", crds},
		{"certificates by hand", certificates},
		{"what is there", asItIs},
		{"the least privileges", podSecurity},
		{"rights", rights},
		{"a directory of one's own", ownDirectory},
		{"cert-manager that is not there", withoutCertManager},
		{"other paths and another name", replaced},
		{"another namespace", otherNamespace},
		{"some nodes only", someNodes},
		{"uninstall", uninstall},
	} {
		if !t.Run(step.name, func(t *testing.T) { inner := *s; inner.T = t; step.run(&inner) }) {
			return
		}
	}
}

func withoutCRDs(s *scene) {
	out, err := s.try(s.documented("kubectl apply --server-side -k deploy/linux"))
	if err == nil || !strings.Contains(out, `no matches for kind "VolumeSnapshotClass"`) ||
		!strings.Contains(out, `no matches for kind "VolumeGroupSnapshotClass"`) {
		s.Errorf("%v\n%s", err, out)
	}
	s.deployment()
	s.daemonSet()
}

func crds(s *scene) {
	s.run(s.documented("kubectl apply --server-side -k charts/causeway/crds"))
	s.run("kubectl wait --timeout=60s --for=condition=Established crd --all")
	if out := s.run(s.documented("kubectl get crd volumesnapshots.snapshot.storage.k8s.io " +
		"volumegroupsnapshots.groupsnapshot.storage.k8s.io")); strings.Count(out, "snapshots.") != 2 {
		s.Error(out)
	}
}

// certificates runs the commands of the page, and then the commands that those print.
func certificates(s *scene) {
	bin := filepath.Join(s.Home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		s.Fatal(err)
	}
	driver := gobuild.Program{Package: gobuild.Driver, Dir: source}
	if err := driver.Copy(s.Context(), filepath.Join(bin, "driver")); err != nil {
		s.Fatal(err)
	}
	s.run(s.documented("kubectl apply --server-side -f deploy/linux/namespace.yaml"))
	commands := 0
	for line := range strings.Lines(s.run(s.documented("bin/driver certs --dir=certs --shared=causeway-nodes"))) {
		if command := strings.TrimSpace(line); strings.HasPrefix(command, "kubectl ") {
			commands++
			s.run(command)
		}
	}
	if commands != 2 {
		s.Errorf("it prints %d commands, want 2", commands)
	}
	for _, mounted := range []string{
		volumeSecret(s.deployment().Spec.Template.Spec), volumeSecret(s.daemonSet().Spec.Template.Spec),
	} {
		secret, err := s.Client.CoreV1().Secrets(namespace).Get(s.Context(), mounted, meta.GetOptions{})
		if err != nil || len(secret.Data["ca.crt"])*len(secret.Data["tls.crt"])*len(secret.Data["tls.key"]) == 0 {
			s.Errorf("the secret %q: %v", mounted, err)
		}
	}
}

func volumeSecret(p core.PodSpec) string {
	for _, v := range p.Volumes {
		if v.Secret != nil {
			return v.Secret.SecretName
		}
	}
	return ""
}

// asItIs: all is taken, without a warning, and once more changes nothing. The older way of kubectl
// takes it, too.
func asItIs(s *scene) {
	const line = "kubectl apply --server-side -k deploy/linux"
	if out := s.run(line); strings.Contains(out, "Warning") {
		s.Error(out)
	}
	before := s.run("kubectl -n causeway get deployment,daemonset,service,configmap -o jsonpath='{range " +
		".items[*]}{.metadata.name} {.metadata.generation} {.metadata.resourceVersion}{\"\\n\"}{end}'")
	s.run(line)
	if after := s.run("kubectl -n causeway get deployment,daemonset,service,configmap -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.generation} {.metadata.resourceVersion}{\"\\n\"}{end}'"); after != before {
		s.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if out := s.run("kubectl apply -k deploy/linux --dry-run=server 2>&1 | grep -v 'missing the kubectl.kubernetes.io/last-applied-configuration'"); !strings.Contains(out, "daemonset.apps/causeway-node configured (server dry run)") {
		s.Error(out)
	}
	for _, c := range append(s.deployment().Spec.Template.Spec.Containers,
		s.daemonSet().Spec.Template.Spec.Containers...) {
		if c.Image != "ghcr.io/causeway-csi/"+c.Name+":dev" {
			s.Errorf("%s runs %s", c.Name, c.Image)
		}
	}
}

// podSecurity sends pods like those of the manifests to the API server, in namespaces of each
// level. The server must refuse the others, too.
func podSecurity(s *scene) {
	controller, node := s.deployment().Spec.Template.Spec, s.daemonSet().Spec.Template.Spec
	loose := *controller.DeepCopy()
	loose.SecurityContext.SeccompProfile = nil
	weak := *node.DeepCopy()
	weak.Containers[0].SecurityContext.Privileged = new(false)
	for i, tc := range []struct {
		name, level string
		pod         core.PodSpec
		refused     string // empty where it is not
	}{
		{"the controller passes the highest level", "restricted", controller, ""},
		{"which is in force", "restricted", loose, "seccompProfile"},
		{"a node's pod does not pass it", "restricted", node, "privileged"},
		{"nor the one below", "baseline", node, "privileged"},
		{"a node's pod passes the level of our namespace", "privileged", node, ""},
		{"without privileges it cannot mount for others", "privileged", weak,
			"Bidirectional mount propagation is available only to privileged containers"},
	} {
		in := fmt.Sprintf("%s-%d", tc.level, i)
		s.Namespace(in, map[string]string{"pod-security.kubernetes.io/enforce": tc.level})
		s.Account(in, tc.pod.ServiceAccountName)
		s.Run(tc.name, func(t *testing.T) {
			pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "it"}, Spec: tc.pod}
			_, err := s.Client.CoreV1().Pods(in).Create(t.Context(), pod,
				meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
			if tc.refused == "" && err != nil || tc.refused != "" &&
				(err == nil || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("%v, want %q in it", err, tc.refused)
			}
		})
	}
}

// rights: the roles are bound to their accounts, and no other account has any.
func rights(s *scene) {
	for line, want := range map[string]string{
		"create persistentvolumes --as=system:serviceaccount:causeway:causeway-controller":                "yes",
		"update leases -n causeway --as=system:serviceaccount:causeway:causeway-controller":               "yes",
		"create csistoragecapacities -n causeway --as=system:serviceaccount:causeway:causeway-controller": "yes",
		"list pods -A --as=system:serviceaccount:causeway:causeway-controller":                            "no",
		"get secrets -n causeway --as=system:serviceaccount:causeway:causeway-controller":                 "no",
		"update leases -n default --as=system:serviceaccount:causeway:causeway-controller":                "no",
		"create volumesnapshotcontents --as=system:serviceaccount:causeway:causeway-controller":           "no",
		"get nodes --as=system:serviceaccount:causeway:causeway-node":                                     "no",
		"list persistentvolumes --as=system:serviceaccount:causeway:causeway-node":                        "no",
	} {
		out, _ := s.try("kubectl auth can-i " + line + " 2>/dev/null") // a missing right ends with 1
		if strings.TrimSpace(out) != want {
			s.Errorf("%s: %s, want %s", line, out, want)
		}
	}
}

// ownDirectory: the page's kustomization, with all components but cert-manager, has the effects in
// its comments.
func ownDirectory(s *scene) {
	s.overlay("cert-manager")
	s.run(s.documented("kubectl apply --server-side -k causeway"))
	pod := s.deployment().Spec.Template.Spec
	if got := pod.Containers[1].Args[0]; got != "--controllers=provisioner,resizer,snapshotter,health-monitor,snapshot-controller" {
		s.Error(got)
	}
	for _, flag := range []string{"--snapshot-controller-kube-api-qps=100",
		"--snapshot-controller-kube-api-burst=200"} {
		if !slices.Contains(pod.Containers[1].Args, flag) {
			s.Errorf("%s is not in %q", flag, pod.Containers[1].Args)
		}
	}
	if got := pod.Containers[0].Image; got != "registry.example/driver:dev" {
		s.Error(got)
	}
	if out := s.run("kubectl -n causeway get configmap causeway-forgotten-nodes -o " +
		"jsonpath='{.data.nodes}'"); !strings.HasPrefix(out, "node-17 ") {
		s.Error(out)
	}
	s.run("kubectl -n causeway get networkpolicy causeway-node causeway-controller")
	s.run("kubectl get volumeattributesclass causeway-hostpath-read-ahead")
	const create = "kubectl auth can-i create volumesnapshotcontents " +
		"--as=system:serviceaccount:causeway:causeway-controller 2>/dev/null"
	if out := s.run(create); strings.TrimSpace(out) != "yes" {
		s.Error(out)
	}
	// A user declares another node lost with kubectl edit: a later apply names the change, and does
	// not undo it.
	s.run(`kubectl -n causeway patch configmap causeway-forgotten-nodes --field-manager=kubectl-edit -p '{"data":{"nodes":"node-18"}}'`)
	if out, err := s.try("kubectl apply --server-side -k causeway"); err == nil ||
		!strings.Contains(out, `conflict with "kubectl-edit"`) {
		s.Errorf("%v\n%s", err, out)
	}
	s.run("kubectl apply --server-side --force-conflicts -k causeway")
}

func withoutCertManager(s *scene) {
	s.overlay()
	if out, err := s.try("kubectl apply --server-side -k causeway"); err == nil ||
		!strings.Contains(out, `no matches for kind "Certificate"`) {
		s.Errorf("%v\n%s", err, out)
	}
	out := s.run("kubectl kustomize causeway")
	if strings.Count(out, "kind: Certificate\n") != 3 {
		s.Error(out)
	}
	for object := range strings.SplitSeq(out, "\n---\n") {
		if !strings.Contains(object, "\n  labels:\n    app.kubernetes.io/part-of: causeway\n") {
			s.Errorf("no label by which it is found:\n%s", object)
		}
	}
}

// replaced runs the page's lines that replace a path or the name, without changing anything.
func replaced(s *scene) {
	s.overlay("cert-manager", "attributes")
	lines := regexp.MustCompile(`(?m)^kubectl kustomize causeway \| sed 's#(\S+)#(\S+)#g' \| kubectl apply --server-side -f -$`).FindAllStringSubmatch(s.page, -1)
	if len(lines) != 3 {
		s.Fatalf("the page has %d such lines", len(lines))
	}
	// Those have the driver's name, and cannot be changed.
	s.run("kubectl delete -l app.kubernetes.io/part-of=causeway " +
		"storageclasses,volumesnapshotclasses,volumegroupsnapshotclasses")
	for _, l := range lines {
		if out := s.run(l[0] + " --dry-run=server"); strings.Contains(out, l[1]) {
			s.Errorf("%s: %s", l[0], out)
		}
		replaced := s.run(strings.TrimSuffix(l[0], " | kubectl apply --server-side -f -"))
		if strings.Contains(replaced, l[1]) || !strings.Contains(replaced, l[2]) {
			s.Errorf("%s leaves %s:\n%s", l[0], l[1], replaced)
		}
	}
}

// otherNamespace: kustomize finds all that has to change, and the router asks for its own
// namespace's service.
func otherNamespace(s *scene) {
	s.write("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: storage\nresources: " +
		"[../deploy/linux]\n" +
		"components: [../deploy/linux/snapshot-controller, ../deploy/linux/network-policy, " +
		"../deploy/linux/cert-manager]\n")
	out := s.run("kubectl kustomize causeway")
	if strings.Contains(out, "namespace: causeway\n") || strings.Contains(out, "causeway.svc") ||
		!strings.Contains(out, "kind: Namespace\nmetadata:\n  labels:\n    app.kubernetes.io/part-of: causeway\n    "+
			"pod-security.kubernetes.io/audit: privileged\n    pod-security.kubernetes.io/enforce: privileged\n    "+
			"pod-security.kubernetes.io/warn: privileged\n  name: storage\n") {
		s.Error(out)
	}
}

func someNodes(s *scene) {
	patch := regexp.MustCompile("(?s)```yaml\n(- target: \\{kind: DaemonSet.*?)```").FindStringSubmatch(s.page)
	if patch == nil {
		s.Fatal("docs/how-to/install.md has no such patch")
	}
	s.write("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: " +
		"[../deploy/linux]\npatches:\n" + patch[1])
	if out := s.run("kubectl kustomize causeway"); !strings.Contains(out,
		"nodeSelector:\n        kubernetes.io/os: linux\n        storage.example.com/causeway: \"true\"\n") {
		s.Error(out)
	}
}

// uninstall leaves the volumes of the classes, and the CRDs.
func uninstall(s *scene) {
	s.run(`kubectl create -f - <<'X'
apiVersion: v1
kind: PersistentVolume
metadata: {name: kept, finalizers: [external-provisioner.volume.kubernetes.io/finalizer]}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: causeway-hostpath
  csi: {driver: hostpath.csi.causeway.dev, volumeHandle: a` + strings.Repeat("0", 56) + `}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: hostpath.csi.causeway.dev/node, operator: In, values: [node-1]}]}]}}
X`)
	s.run("kubectl apply --server-side --force-conflicts -k deploy/linux")
	s.run("kubectl delete --wait=false -k deploy/linux")
	s.run("kubectl get pv kept")
	s.run("kubectl get crd volumesnapshots.snapshot.storage.k8s.io")
	if out, err := s.try("kubectl get csidriver hostpath.csi.causeway.dev"); err == nil {
		s.Error(out)
	}
}
