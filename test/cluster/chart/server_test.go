package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/test/cluster/internal/apiserver"
)

// server is an API server that knows all kinds of the chart's objects, and no controllers.
type server struct {
	apiserver.Server
	helm   string            // the directory that has it
	labels map[string]string // of the namespace that the chart makes
}

// begin starts an API server, and makes the namespaces of all configurations, with the chart's
// labels.
func begin(t *testing.T) *server {
	t.Helper()
	s := &server{Server: apiserver.Start(t), helm: programs(t)}
	s.kubectl("", "apply", "--server-side", "-k", filepath.Join(Directory(), "crds"))
	for module, path := range map[string]string{
		"github.com/cert-manager/cert-manager":               "deploy/crds",
		"github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd",
	} {
		s.kubectl("", "apply", "--server-side", "-f", filepath.Join(s.module(module), path))
	}
	s.kubectl("", "wait", "--timeout=60s", "--for=condition=Established", "crd", "--all")
	for _, name := range []string{"causeway", "storage"} {
		for _, o := range s.render("--namespace=elsewhere", "--set=namespace.create=true,namespace.name="+name) {
			if o.Source == "namespace.yaml" {
				s.kubectl(o.Text, "apply", "--server-side", "-f", "-")
				s.labels = s.object(o).Metadata.Labels
			}
		}
		s.Account(name, "default") // of the pods of helm test
	}
	return s
}

// module returns where a module is that crds/go.mod names, which is fetched if it is not there.
func (s *server) module(path string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), "go", "mod", "download", "-json")
	cmd.Dir, cmd.Env = "crds", append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	for found := json.NewDecoder(strings.NewReader(string(out))); found.More(); {
		var m struct{ Path, Dir string }
		if err := found.Decode(&m); err != nil {
			s.Fatal(err)
		}
		if m.Path == path {
			return m.Dir
		}
	}
	s.Fatalf("crds/go.mod has no %s", path)
	return ""
}

// try runs kubectl with text as its input, and returns all that it prints.
func (s *server) try(text string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.Context(), s.Kubectl, args...)
	cmd.Env, cmd.Stdin = s.Env, strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// kubectl is try for commands that must work.
func (s *server) kubectl(text string, args ...string) string {
	s.Helper()
	out, err := s.try(text, args...)
	if err != nil {
		s.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *server) render(args ...string) []Object {
	s.Helper()
	objects, err := Render(s.Context(), s.helm, args...)
	if err != nil {
		s.Fatal(err)
	}
	return objects
}

// parsed has the fields of objects of any kind that the tests read.
type parsed struct {
	Kind     string
	Metadata meta.ObjectMeta
	Spec     struct {
		core.PodSpec                      // a Pod's
		Template     core.PodTemplateSpec // a Deployment's or DaemonSet's
	}
}

func (s *server) object(o Object) (p parsed) {
	s.Helper()
	var kind struct {
		Kind     string
		Metadata meta.ObjectMeta
		Spec     json.RawMessage
	}
	err := yaml.Unmarshal([]byte(o.Text), &kind)
	p.Kind, p.Metadata = kind.Kind, kind.Metadata
	switch {
	case err == nil && kind.Kind == "Pod":
		err = json.Unmarshal(kind.Spec, &p.Spec.PodSpec)
	case err == nil && (kind.Kind == "Deployment" || kind.Kind == "DaemonSet"):
		var w struct{ Template core.PodTemplateSpec }
		err = json.Unmarshal(kind.Spec, &w)
		p.Spec.Template = w.Template
	}
	if err != nil {
		s.Fatalf("%s: %v", o.Source, err)
	}
	return p
}

// pod returns the pods that an object is or has made, if it is of such a kind.
func (p parsed) pod() (core.PodSpec, bool) {
	switch p.Kind {
	case "Pod":
		return p.Spec.PodSpec, true
	case "Deployment", "DaemonSet":
		return p.Spec.Template.Spec, true
	}
	return core.PodSpec{}, false
}

// TestServer gives a real API server all that the chart makes.
func TestServer(t *testing.T) {
	s := begin(t)
	for _, step := range []struct {
		name string
		run  func(*server)
	}{
		{"every object is taken", everyObject},
		{"what is not taken", notTaken},
		{"Pod Security", podSecurity},
		{"what the policies refuse", policies},
		{"no policy, nothing refused", noPolicies},
		{"what somebody has changed", changed}, // its release stays
		{"what is looked up", lookedUp},        // the last, as it takes a CRD away
	} {
		t.Run(step.name, func(t *testing.T) { inner := *s; inner.T = t; step.run(&inner) })
	}
}

// strictly is a dry run with all errors: an unknown field is an error, and so is a warning, of Pod
// Security or of a deprecation.
var strictly = []string{"apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f",
	"-"}

// everyObject: the objects of every configuration, including those of Windows nodes.
func everyObject(s *server) {
	for _, c := range configurations(s.T) {
		s.Run(c.Name, func(t *testing.T) {
			objects := s.render(c.Args...)
			var all []string
			for _, o := range objects {
				all = append(all, o.Text)
			}
			out, err := s.try(strings.Join(all, "---\n"), strictly...)
			if taken := strings.Count(out, "serverside-applied (server dry run)"); err != nil || taken != len(objects) {
				t.Errorf("%d of %d objects are taken, %v\n%s", taken, len(objects), err, out)
			}
		})
	}
}

// notTaken: the test before would find a wrong object.
func notTaken(s *server) {
	node := func(change func(string) string) string {
		for _, o := range s.render() {
			if o.Source == "hostpath/node.yaml" && s.object(o).Kind == "DaemonSet" {
				return change(o.Text)
			}
		}
		s.Fatal("the chart has no DaemonSet")
		return ""
	}
	s.Namespace("warned", map[string]string{"pod-security.kubernetes.io/warn": "restricted"})
	for name, tc := range map[string]struct{ object, want string }{
		"an unknown field": {node(func(o string) string {
			return strings.Replace(o, "priorityClassName:",
				"priorityClass:", 1)
		}), "priorityClass"},
		"a value that is not": {node(func(o string) string {
			return strings.Replace(o, "Bidirectional", "Both",
				1)
		}), "Both"},
		"a warning of Pod Security": {node(func(o string) string {
			return strings.Replace(o, "namespace: causeway",
				"namespace: warned", 1)
		}), "would violate PodSecurity"},
	} {
		if out, err := s.try(tc.object, strictly...); err == nil || !strings.Contains(out, tc.want) {
			s.Errorf("%s: %v, want %q in\n%s", name, err, tc.want, out)
		}
	}
}

// podSecurity tests that Pod Security admits all pods where the chart's labels are, and those of
// nodes and of a controller with hostpath.controller.privileged nowhere else.
func podSecurity(s *server) {
	s.Namespace("ours", s.labels)
	for _, level := range []string{"baseline", "restricted"} {
		s.Namespace(level, map[string]string{"pod-security.kubernetes.io/enforce": level})
	}
	accounts := map[string]bool{}
	for _, c := range configurations(s.T) {
		for _, o := range s.render(c.Args...) {
			p := s.object(o)
			spec, ok := p.pod()
			if !ok {
				continue
			}
			if spec.ServiceAccountName == "" {
				spec.ServiceAccountName = "default"
			}
			privileged := p.Kind == "DaemonSet" || p.Kind == "Deployment" && c.Name == "attached"
			refused := map[string]bool{"ours": false, "baseline": privileged, "restricted": privileged}
			for in, want := range refused {
				if account := in + "/" + spec.ServiceAccountName; !accounts[account] {
					accounts[account] = true
					s.Account(in, spec.ServiceAccountName)
				}
				_, err := s.Client.CoreV1().Pods(in).Create(s.Context(),
					&core.Pod{ObjectMeta: meta.ObjectMeta{Name: "it"},
						Spec: spec}, meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
				if !want && err != nil || want &&
					(err == nil || !strings.Contains(err.Error(), "violates PodSecurity")) {
					s.Errorf("%s: a pod of %s %s where Pod Security is %s: %v, want it refused: %v", c.Name, p.Kind,
						p.Metadata.Name, in, err, want)
				}
			}
		}
	}
}

// attempt is an object of a user, and the policies' answer.
type attempt struct {
	name, object string
	refused      string // empty where it is not
}

// Names of a volume and of a snapshot as the driver makes them.
var (
	volumeHandle   = "a" + strings.Repeat("0v", 28)
	snapshotHandle = "s" + strings.Repeat("0v", 28)
)

// volume returns a PersistentVolume with these nodeSelectorTerms.
func volume(driver, handle, affinity string) string {
	if affinity != "" {
		affinity = "\n  nodeAffinity: {required: {nodeSelectorTerms: [" + affinity + "]}}"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: it}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  csi: {driver: %s, volumeHandle: %q}%s
`, driver, handle, affinity)
}

func content(driver, source string) string {
	return fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: it}
spec:
  driver: %s
  deletionPolicy: Retain
  volumeSnapshotRef: {namespace: default, name: it}
  source: {%s}
`, driver, source)
}

func group(driver, source string) string {
	return fmt.Sprintf(`apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotContent
metadata: {name: it}
spec:
  driver: %s
  deletionPolicy: Retain
  volumeGroupSnapshotRef: {namespace: default, name: it}
  source: {%s}
`, driver, source)
}

// inline returns a pod with inline volumes, of a driver and the attributes of each.
func inline(namespace, driver string, attributes ...string) string {
	var volumes []string
	for i, a := range attributes {
		if a != "" {
			a = ", volumeAttributes: {" + a + "}"
		}
		volumes = append(volumes, fmt.Sprintf("{name: v%d, csi: {driver: %s%s}}", i, driver, a))
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: it, namespace: %s}
spec:
  containers: [{name: it, image: it}]
  volumes: [%s]
`, namespace, strings.Join(volumes, ", "))
}

// policies tries the objects that the policies reject, with each of their values.
func policies(s *server) {
	for namespace, labels := range map[string]map[string]string{"may": {"example.com/inline": "yes"},
		"may-not": {"example.com/inline": "no"}, "unlabeled": nil} {
		s.Namespace(namespace, labels)
		s.Account(namespace, "default")
	}
	const (
		usual = "usual.csi.example.com"
		large = "large.csi.example.com"
		small = "small.csi.example.com"
		some  = "some.csi.example.com"
		other = "other.csi.example.com"

		badVolume   = "the volumeHandle is none that this driver makes"
		badSnapshot = "the snapshotHandle is none that this driver makes"
		badGroup    = "a handle is none that this driver makes"
		badSize     = "the size of an inline volume is a whole number"
	)
	on := func(driver string) string {
		return "{matchExpressions: [{key: " + driver + "/node, operator: In, values: [node-1]}]}"
	}
	for _, v := range []struct {
		driver, values string
		attempts       []attempt
	}{
		{usual, "", []attempt{
			{"a volume", volume(usual, volumeHandle, on(usual)), ""},
			{"a volume that may be on two nodes", volume(usual, volumeHandle, on(usual)+", "+on(usual)), ""},
			{"a handle of two letters", volume(usual, "ab", on(usual)), badVolume},
			{"one that climbs", volume(usual, "../../../../etc/shadow", on(usual)), badVolume},
			{"one that is a path", volume(usual, "/etc", on(usual)), badVolume},
			{"a snapshot's", volume(usual, snapshotHandle, on(usual)), badVolume},
			{"in capitals", volume(usual, strings.ToUpper(volumeHandle), on(usual)), badVolume},
			{"one too long", volume(usual, volumeHandle+"0", on(usual)), badVolume},
			{"one too short", volume(usual, volumeHandle[1:], on(usual)), badVolume},
			{"with a line more", volume(usual, volumeHandle+"\n", on(usual)), badVolume},
			{"with letters that are not used", volume(usual, "a"+strings.Repeat("w", 56), on(usual)), badVolume},
			{"no affinity, as Kubernetes' own tests make one", volume(usual, volumeHandle, ""), ""},
			{"another driver's volume", volume(other, "/etc", ""), ""},
			{"a volume of no driver", strings.Replace(volume(other, "/etc", ""),
				"csi: {driver: "+other+", volumeHandle: \"/etc\"}", "hostPath: {path: /etc}", 1), ""},

			{"a snapshot of a volume", content(usual, "volumeHandle: "+volumeHandle), ""},
			{"a snapshot that is there", content(usual, "snapshotHandle: "+snapshotHandle), ""},
			{"a snapshot of what is none", content(usual, "volumeHandle: x"), badVolume},
			{"a snapshot of a snapshot", content(usual, "volumeHandle: "+snapshotHandle), badVolume},
			{"a snapshot that is none", content(usual, "snapshotHandle: ../x"), badSnapshot},
			{"a snapshot that is a volume", content(usual, "snapshotHandle: "+volumeHandle), badSnapshot},
			{"another driver's snapshot", content(other, "snapshotHandle: ../x"), ""},

			{"a group of volumes", group(usual, "volumeHandles: ["+volumeHandle+"]"), ""},
			{"a group that is there", group(usual, "groupSnapshotHandles: {volumeGroupSnapshotHandle: g"+volumeHandle[1:]+", volumeSnapshotHandles: ["+snapshotHandle+"]}"), ""},
			{"a group of what is none", group(usual, "volumeHandles: ["+volumeHandle+", x]"), "a volumeHandle is none"},
			{"a group that is none", group(usual, "groupSnapshotHandles: {volumeGroupSnapshotHandle: ../x, volumeSnapshotHandles: ["+snapshotHandle+"]}"), badGroup},
			{"a group with a volume for a snapshot", group(usual, "groupSnapshotHandles: {volumeGroupSnapshotHandle: g"+volumeHandle[1:]+", volumeSnapshotHandles: ["+volumeHandle+"]}"), badGroup},
			{"another driver's group", group(other, "volumeHandles: [x]"), ""},

			{"an inline volume", inline("unlabeled", usual, "size: 10Gi, kind: image"), ""},
			{"one that says nothing", inline("unlabeled", usual, ""), ""},
			{"one of the largest unit", inline("unlabeled", usual, "size: 1P"), ""},
			{"two", inline("unlabeled", usual, "size: 1Gi", "kind: directory"), ""},
			{"another driver's", inline("unlabeled", other, "path: /etc"), ""},
			{"the smallest image", inline("unlabeled", usual, "size: 4Mi, kind: image"), ""},
			{"an image that is too small", inline("unlabeled", usual, "size: 4095Ki, kind: image"), "at least 4Mi"},
			{"the smallest xfs", strings.Replace(inline("unlabeled", usual, "size: 300Mi, kind: image"), "csi: {",
				"csi: {fsType: xfs, ", 1), ""},
			{"an xfs that is too small", strings.Replace(inline("unlabeled", usual, "size: 299Mi, kind: image"),
				"csi: {", "csi: {fsType: xfs, ", 1), "with xfs 300Mi"},
			{"a directory may be smaller", inline("unlabeled", usual, "size: 1Mi, kind: directory"), ""},
			{"an unknown key", inline("unlabeled", usual, "size: 1Gi, path: /etc"),
				"may say its size and its kind, and nothing else"},
			{"Kubernetes' own key", inline("unlabeled", usual, "csi.storage.k8s.io/ephemeral: \"false\""),
				"and nothing else"},
			{"another kind", inline("unlabeled", usual, "kind: block"),
				"the kind of an inline volume is directory or image"},
			{"the second is wrong", inline("unlabeled", usual, "size: 1Gi", "size: x"), badSize},
			{"no size", inline("unlabeled", usual, `size: ""`), badSize},
			{"nothing", inline("unlabeled", usual, `size: "0"`), badSize},
			{"less than nothing", inline("unlabeled", usual, "size: -1Gi"), badSize},
			{"another unit", inline("unlabeled", usual, "size: 1GB"), badSize},
			{"half of a unit", inline("unlabeled", usual, "size: 1.5Gi"), badSize},
			{"an exponent", inline("unlabeled", usual, `size: "1e9"`), badSize},
			{"more than any", inline("unlabeled", usual, `size: "99999999999999999999"`), badSize},
		}},
		{large, "admission.inline.maxSize=2Gi", []attempt{
			{"as large as it may be", inline("unlabeled", large, "size: 2Gi"), ""},
			{"in other units", inline("unlabeled", large, `size: "2147483648"`), ""},
			{"that says nothing", inline("unlabeled", large, ""), ""},
			{"a byte more", inline("unlabeled", large, `size: "2147483649"`), "may have at most 2Gi"},
			{"more in other units", inline("unlabeled", large, "size: 3G"), "may have at most 2Gi"},
			{"much more", inline("unlabeled", large, "size: 9999999999999999999Pi"), "may have at most 2Gi"},
			{"the second is larger", inline("unlabeled", large, "size: 1Gi", "size: 3Gi"), "may have at most 2Gi"},
			{"another driver's", inline("unlabeled", other, "size: 3Gi"), ""},
		}},
		{small, "admission.inline.maxSize=512Mi", []attempt{
			{"a size", inline("unlabeled", small, "size: 512Mi"), ""},
			{"too large", inline("unlabeled", small, "size: 513Mi"), "may have at most 512Mi"},
			{"no attributes", inline("unlabeled", small, ""), "must say its size here"},
			{"a kind alone", inline("unlabeled", small, "kind: image"), "must say its size here"},
			{"the second says none", inline("unlabeled", small, "size: 1Mi", ""), "must say its size here"},
		}},
		{some, `admission.inline.namespaceLabels.example\.com/inline=yes`, []attempt{
			{"where they may be", inline("may", some, ""), ""},
			{"where the label says no", inline("may-not", some, ""),
				"are for namespaces with the label example.com/inline=yes"},
			{"where there is no label", inline("unlabeled", some, ""),
				"are for namespaces with the label example.com/inline=yes"},
			{"another driver's", inline("unlabeled", other, ""), ""},
		}},
	} {
		name, _, _ := strings.Cut(v.driver, ".")
		args := []string{"--set=fullnameOverride=" + name + ",hostpath.driverName=" + v.driver}
		if v.values != "" {
			args = append(args, "--set-string="+v.values)
		}
		s.Run(name, func(t *testing.T) {
			inner := *s
			inner.T = t
			inner.inForce(args...)
			// They take a moment to be in force, each its own.
			await.NoError(t, "the policy of volumes is in force",
				func() error { return inner.attempt(volume(v.driver, "x", on(v.driver)), badVolume) })
			await.NoError(t, "the policy of contents is in force",
				func() error { return inner.attempt(content(v.driver, "volumeHandle: x"), badVolume) })
			await.NoError(t, "the policy of inline volumes is in force", func() error {
				return inner.attempt(inline("may", v.driver, "kind: x"),
					"the kind of an inline volume")
			})
			for _, a := range v.attempts {
				if err := inner.attempt(a.object, a.refused); err != nil {
					t.Errorf("%s: %v", a.name, err)
				}
			}
		})
	}
}

// inForce applies the policies that the chart makes.
func (s *server) inForce(args ...string) {
	s.Helper()
	var all []string
	for _, o := range s.render(args...) {
		if o.Source == "hostpath/admission.yaml" {
			all = append(all, o.Text)
		}
	}
	if len(all) == 0 {
		s.Fatal("the chart makes no policies")
	}
	s.kubectl(strings.Join(all, "---\n"), "apply", "--server-side", "--validate=strict", "--warnings-as-errors", "-f",
		"-")
}

// attempt asks the server for an object, which is not kept, and compares the answer.
func (s *server) attempt(object, refused string) error {
	out, err := s.try(object, "create", "--dry-run=server", "--validate=ignore", "-f", "-")
	if refused == "" && err != nil || refused != "" && (err == nil || !strings.Contains(out, refused)) {
		return fmt.Errorf("%v, want %q in: %s", err, refused, out) //nolint:errorlint // err may be nil
	}
	return nil
}

// noPolicies: a chart without them makes none.
func noPolicies(s *server) {
	for _, o := range s.render("--set=admission.handles=false,admission.inline.enabled=false") {
		if strings.HasPrefix(s.object(o).Kind, "ValidatingAdmission") {
			s.Errorf("there is a %s %s", s.object(o).Kind, s.object(o).Metadata.Name)
		}
	}
}

// changed: an upgrade keeps the changes of kubectl edit, except where a value requires otherwise.
func changed(s *server) {
	nodes := func() string {
		return s.kubectl("", "-n", "causeway", "get", "configmap", "causeway-forgotten-nodes", "-o",
			"jsonpath={.data.nodes}")
	}
	// The cluster's CRDs are its own, and not as the chart's: as docs/how-to/install.md describes,
	// Helm is told to leave them alone.
	s.kubectl("", "annotate", "--overwrite", "--field-manager=somebody", "crd",
		"volumesnapshots.snapshot.storage.k8s.io", "controller-gen.kubebuilder.io/version=v0.0.1")
	if err := s.release("causeway", "install", "causeway", Directory()); err == nil ||
		!strings.Contains(err.Error(), `"somebody"`) {
		s.Errorf("%v", err)
	}
	if err := s.release("causeway", "install", "causeway", Directory(), "--skip-crds",
		"--set=hostpath.forgottenNodes={node-17}"); err != nil {
		s.Fatal(err)
	}
	if err := s.release("causeway", "install", "second", Directory(), "--skip-crds", "--set=hostpath.driverName=second.csi.example.com"); err == nil || !strings.Contains(err.Error(), "each driver needs its own classes") {
		s.Errorf("a second driver with the classes of the first: %v", err)
	}
	s.kubectl("", "-n", "causeway", "patch", "configmap", "causeway-forgotten-nodes", "--field-manager=kubectl-edit",
		"-p", `{"data":{"nodes":"node-18"}}`)
	if err := s.release("causeway", "upgrade", "causeway", Directory(), "--set=hostpath.forgottenNodes={node-17}"); err == nil || !strings.Contains(err.Error(), `conflict with "kubectl-edit"`) || nodes() != "node-18" {
		s.Errorf("%v, and the nodes are %q", err, nodes())
	}
	if err := s.release("causeway", "upgrade", "causeway", Directory(), "--set=hostpath.forgottenNodes={node-17}",
		"--force-conflicts"); err != nil || !strings.Contains(nodes(), "\nnode-17\n") {
		s.Errorf("%v, and the nodes are %q", err, nodes())
	}
}

// lookedUp: the objects in the cluster are read before any change, in a namespace whose name YAML
// takes for a number, too.
func lookedUp(s *server) {
	refused := func(want string, args ...string) {
		s.Helper()
		if err := s.release("causeway", append([]string{"upgrade", "causeway", Directory()}, args...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			s.Errorf("%v, want %q", err, want)
		}
	}
	const class = `{"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "fast", "finalizers": ["example.com/used"]},
		"driverName": "hostpath.csi.causeway.dev", "parameters": {"readahead": "1Mi"}}`
	s.kubectl(class, "create", "-f", "-")
	s.kubectl("", "delete", "--wait=false", "volumeattributesclass", "fast")
	refused("fast is being deleted", "--set=hostpath.volumeAttributesClasses.fast.readahead=1Mi")
	refused("cannot be called otherwise", "--set=hostpath.driverName=other.csi.example.com")

	s.Namespace("2024", nil)
	numbers := []string{"--skip-crds", "--set=hostpath.driverName=numbers.csi.example.com,fullnameOverride=numbers,hostpath.snapshotClass.name=numbers,hostpath.groupSnapshotClass.name=numbers",
		"--set-json=hostpath.storageClasses={\"causeway-hostpath\": null, \"causeway-hostpath-image\": null}"}
	keys := func() string {
		return s.kubectl("", "-n", "2024", "get", "secrets", "-o",
			`jsonpath={.items[?(@.type=="kubernetes.io/tls")].data.tls\.key}`)
	}
	if err := s.release("2024", append([]string{"install", "numbers", Directory()}, numbers...)...); err != nil {
		s.Fatal(err)
	}
	before := keys()
	if err := s.release("2024", append([]string{"upgrade", "numbers", Directory()}, numbers[1:]...)...); err != nil ||
		len(strings.Fields(before)) != 2 || keys() != before {
		s.Errorf("%v, or an upgrade has made other keys", err)
	}

	s.kubectl("", "delete", "crd", "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io")
	refused("hostpath.groupSnapshotClass: the cluster does not serve " +
		"groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotClass")
}

// release runs Helm for a release in a namespace.
func (s *server) release(namespace string, args ...string) error {
	_, err := HelmIn(s.Context(), s.helm, s.Env, append([]string{"--namespace=" + namespace}, args...)...)
	return err
}

// TestRights compares the roles and bindings that the chart makes with those that csi-sidecars says
// it needs for the arguments that the chart gives it.
func TestRights(t *testing.T) {
	s := &server{Server: apiserver.Server{T: t}, helm: programs(t)}
	sidecars := filepath.Join(t.TempDir(), "csi-sidecars")
	program := gobuild.Program{Package: "./cmd/csi-sidecars", Dir: filepath.Join(Sources(), "sidecars"),
		Flags: []string{"-tags=grpcnotrace"}}
	if err := program.Copy(t.Context(), sidecars); err != nil {
		t.Fatal(err)
	}
	for _, c := range configurations(t) {
		t.Run(c.Name, func(t *testing.T) {
			var have, want []string
			for _, o := range s.render(c.Args...) {
				p := s.object(o)
				if strings.Contains(o.Source, "/rbac") {
					have = append(have, plain(t, o.Text))
				}
				backend, file, _ := strings.Cut(o.Source, "/")
				if file != "controller.yaml" || p.Kind != "Deployment" {
					continue
				}
				i := slices.IndexFunc(p.Spec.Template.Spec.Containers,
					func(c core.Container) bool { return c.Name == "csi-sidecars" })
				args := p.Spec.Template.Spec.Containers[i].Args
				line := []string{"rbac", "--name=" + strings.TrimSuffix(p.Metadata.Name, "-controller"),
					"--namespace=" + p.Metadata.Namespace,
					"--service-account=" + p.Spec.Template.Spec.ServiceAccountName,
					fmt.Sprintf("--driver-attach=%v", strings.Contains(args[0], ",attacher"))}
				if backend == "smb" { // every node reaches a share
					line = append(line, "--driver-topology=false", "--driver-groups=false")
				}
				out, err := exec.CommandContext(t.Context(), sidecars, append(line, args...)...).Output()
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				for object := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n---\n") {
					want = append(want, plain(t, object))
				}
			}
			slices.Sort(have)
			slices.Sort(want)
			if len(want) == 0 || !slices.Equal(have, want) {
				t.Errorf("the chart makes\n%s\nand the sidecars need\n%s", strings.Join(have, "\n"),
					strings.Join(want, "\n"))
			}
		})
	}
}

// plain is an object in a line, without its labels.
func plain(t *testing.T, text string) string {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	delete(o["metadata"].(map[string]any), "labels")
	out, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
