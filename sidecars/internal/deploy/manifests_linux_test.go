// These tests run on Linux alone, so that make vet need not compile Kubernetes' types for every
// platform.

package deploy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const (
	driverName = "hostpath.csi.causeway.dev"
	namespace  = "causeway"
)

// manifests are the objects of deploy/linux that have rules to keep.
type manifests struct {
	all        []object
	namespace  core.Namespace
	csiDriver  storage.CSIDriver
	classes    []storage.StorageClass
	forgotten  core.ConfigMap
	budget     policy.PodDisruptionBudget
	controller apps.Deployment
	service    core.Service
	node       apps.DaemonSet
	accounts   map[string]core.ServiceAccount
	images     map[string]string // names and tags in the kustomization
}

// object has the common fields of all objects.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Driver   string // of classes of snapshots
}

// documents splits a file of YAML.
func documents(text string) []string { return regexp.MustCompile(`(?m)^---\n`).Split(text, -1) }

// parse reads the files of deploy/linux. A field that does not exist is an error.
func parse(files map[string]string) (*manifests, error) {
	m := &manifests{accounts: map[string]core.ServiceAccount{}, images: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, text := range documents(files[name]) {
			if err := m.add(name, []byte(text)); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return m, nil
}

func (m *manifests) add(file string, text []byte) error {
	if file == kustomization {
		var k struct {
			Images []struct{ Name, NewTag string }
		}
		err := yaml.Unmarshal(text, &k)
		for _, i := range k.Images {
			m.images[i.Name] = i.NewTag
		}
		return err
	}
	var o object
	if err := yaml.Unmarshal(text, &o); err != nil {
		return err
	}
	m.all = append(m.all, o)
	into := map[string]any{
		"Namespace/causeway":                      &m.namespace,
		"CSIDriver/" + driverName:                 &m.csiDriver,
		"ConfigMap/causeway-forgotten-nodes":      &m.forgotten,
		"PodDisruptionBudget/causeway-controller": &m.budget,
		"Deployment/causeway-controller":          &m.controller,
		"Service/causeway-nodes":                  &m.service,
		"DaemonSet/causeway-node":                 &m.node,
	}[o.Kind+"/"+o.Metadata.Name]
	switch o.Kind {
	case "StorageClass":
		m.classes = append(m.classes, storage.StorageClass{})
		into = &m.classes[len(m.classes)-1]
	case "ServiceAccount":
		var a core.ServiceAccount
		err := yaml.UnmarshalStrict(text, &a)
		m.accounts[a.Name] = a
		return err
	}
	if into == nil {
		return nil
	}
	return yaml.UnmarshalStrict(text, into)
}

// container returns a container of a pod, or an empty container.
func container(p core.PodSpec, name string) core.Container {
	if i := slices.IndexFunc(p.Containers, func(c core.Container) bool { return c.Name == name }); i >= 0 {
		return p.Containers[i]
	}
	return core.Container{}
}

// given returns a container's flags with their values.
func given(c core.Container) map[string]string {
	flags := map[string]string{}
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		flags[name] = cmp.Or(value, "true")
	}
	return flags
}

// rules are the rules of the manifests, by subject.
var rules = map[string]func(*manifests) []string{
	"the CSIDriver":        (*manifests).checkDriver,
	"storage classes":      (*manifests).checkClasses,
	"the nodes' addresses": (*manifests).checkService,
	"forgotten nodes":      (*manifests).checkForgotten,
	"capacity":             (*manifests).checkCapacity,
	"certificates":         (*manifests).checkCertificates,
	"images":               (*manifests).checkImages,
	"replicas and updates": (*manifests).checkReplicas,
	"access to the API":    (*manifests).checkAPI,
	"paths on the node":    (*manifests).checkPaths,
	"probes":               (*manifests).checkProbes,
	"the end":              (*manifests).checkEnd,
	"resources":            (*manifests).checkResources,
	"names":                (*manifests).checkNames,
}

// differ names the pairs of values that differ, the second of each.
func differ(values map[string][2]any) (wrong []string) {
	for what, v := range values {
		if !reflect.DeepEqual(v[0], v[1]) {
			got, err1 := json.Marshal(v[0])
			want, err2 := json.Marshal(v[1])
			if err := errors.Join(err1, err2); err != nil {
				got = []byte(err.Error())
			}
			wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", what, got, want))
		}
	}
	return wrong
}

// checkDriver: a single object for all kinds of volumes.
func (m *manifests) checkDriver() []string {
	want := storage.CSIDriverSpec{
		AttachRequired: new(false), PodInfoOnMount: new(true), StorageCapacity: new(true), SELinuxMount: new(false),
		FSGroupPolicy: new(storage.FileFSGroupPolicy),
		VolumeLifecycleModes: []storage.VolumeLifecycleMode{storage.VolumeLifecyclePersistent,
			storage.VolumeLifecycleEphemeral},
	}
	return differ(map[string][2]any{"spec": {m.csiDriver.Spec, want}})
}

// checkClasses: the scheduler chooses the node, and a directory has no filesystem of its own.
func (m *manifests) checkClasses() (wrong []string) {
	kinds := map[string]string{}
	for _, c := range m.classes {
		kinds[c.Parameters["kind"]] = c.Parameters["csi.storage.k8s.io/fstype"]
		wrong = append(wrong, differ(map[string][2]any{
			c.Name + " binding":     {c.VolumeBindingMode, new(storage.VolumeBindingWaitForFirstConsumer)},
			c.Name + " expansion":   {c.AllowVolumeExpansion, new(true)},
			c.Name + " provisioner": {c.Provisioner, driverName},
		})...)
	}
	return append(wrong, differ(map[string][2]any{"kinds": {kinds,
		map[string]string{"directory": "", "image": "ext4"}}})...)
}

// checkService: a node that is not ready stays in DNS, and has a single address.
func (m *manifests) checkService() []string {
	s, driver := m.service.Spec, container(m.node.Spec.Template.Spec, "driver")
	port := slices.IndexFunc(driver.Ports, func(p core.ContainerPort) bool { return p.Name == "peer" })
	if port < 0 || len(s.Ports) != 1 {
		return []string{"there is no port of the peers"}
	}
	number, name := fmt.Sprint(driver.Ports[port].ContainerPort), "app.kubernetes.io/name"
	return differ(map[string][2]any{
		"clusterIP":                {s.ClusterIP, core.ClusterIPNone},
		"publishNotReadyAddresses": {s.PublishNotReadyAddresses, true},
		"ipFamilyPolicy":           {s.IPFamilyPolicy, new(core.IPFamilyPolicySingleStack)},
		// Windows nodes' too
		"selector":      {s.Selector, map[string]string{name: m.node.Spec.Selector.MatchLabels[name]}},
		"port":          {fmt.Sprint(s.Ports[0].Port), number},
		"targetPort":    {s.Ports[0].TargetPort, intstr.FromString("peer")},
		"--peer-listen": {given(driver)["peer-listen"], ":" + number},
		"--peers":       {m.router()["peers"], "dns:" + m.service.Name + ".$(NAMESPACE).svc:" + number},
	})
}

// router is the flags of the controller's driver.
func (m *manifests) router() map[string]string {
	return given(container(m.controller.Spec.Template.Spec, "driver"))
}

// volume returns where a container mounts a volume, and the volume.
func volume(p core.PodSpec, c core.Container, name string) (core.VolumeMount, core.Volume) {
	mount := slices.IndexFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.Name == name })
	source := slices.IndexFunc(p.Volumes, func(v core.Volume) bool { return v.Name == name })
	if mount < 0 || source < 0 {
		return core.VolumeMount{}, core.Volume{}
	}
	return c.VolumeMounts[mount], p.Volumes[source]
}

// checkForgotten: a file that is mounted with subPath is never updated, and without the file the
// router does not start.
func (m *manifests) checkForgotten() []string {
	pod := m.controller.Spec.Template.Spec
	mount, v := volume(pod, container(pod, "driver"), "forgotten-nodes")
	if v.ConfigMap == nil {
		return []string{"the ConfigMap is not mounted"}
	}
	dir, key := filepath.Split(m.router()["forgotten-nodes"])
	text, there := m.forgotten.Data[key]
	named := slices.ContainsFunc(strings.Split(text, "\n"),
		func(line string) bool { return line != "" && !strings.HasPrefix(line, "#") })
	return differ(map[string][2]any{
		"the ConfigMap's name": {v.ConfigMap.Name, m.forgotten.Name},
		"its items":            {len(v.ConfigMap.Items), 0},
		"subPath":              {mount.SubPath + mount.SubPathExpr, ""},
		"--forgotten-nodes":    {filepath.Clean(dir), mount.MountPath},
		"its key is there":     {there, true},
		"a node is in it":      {named, false},
	})
}

// checkCapacity: the objects belong to the Deployment, two above the pod, which the provisioner
// finds by its name.
func (m *manifests) checkCapacity() []string {
	c := container(m.controller.Spec.Template.Spec, "csi-sidecars")
	env := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			env[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
	}
	return differ(map[string][2]any{
		"env":     {env, map[string]string{"POD_NAME": "metadata.name", "NAMESPACE": "metadata.namespace"}},
		"enabled": {given(c)["provisioner-enable-capacity"], "true"},
		"owner":   {given(c)["provisioner-capacity-ownerref-level"], "2"},
	})
}

// checkCertificates: each side has its own secret and not the other's, as a whole directory.
func (m *manifests) checkCertificates() (wrong []string) {
	for _, side := range []struct {
		pod    core.PodSpec
		secret string
		mode   int32
	}{
		{m.controller.Spec.Template.Spec, "causeway-router-tls", 0o440}, // its group is fsGroup
		{m.node.Spec.Template.Spec, "causeway-nodes-tls", 0o400},
	} {
		driver := container(side.pod, "driver")
		mount, v := volume(side.pod, driver, "certs")
		if v.Secret == nil {
			wrong = append(wrong, side.secret+" is not mounted")
			continue
		}
		wrong = append(wrong, differ(map[string][2]any{
			side.secret + ", its name": {v.Secret.SecretName, side.secret},
			side.secret + ", its mode": {v.Secret.DefaultMode, new(side.mode)},
			side.secret + ", its mount": {mount,
				core.VolumeMount{Name: "certs", MountPath: given(driver)["peer-certs"], ReadOnly: true}},
		})...)
		for _, v := range side.pod.Volumes {
			if v.Secret != nil && v.Secret.SecretName != side.secret {
				wrong = append(wrong, v.Secret.SecretName+" is another's")
			}
		}
	}
	return append(wrong, differ(map[string][2]any{"--peer-server": {m.router()["peer-server"], "causeway-nodes"}})...)
}

// checkImages: the kustomization, where the release is changed, has every image, and nothing else
// is there already.
func (m *manifests) checkImages() (wrong []string) {
	used := map[string]string{}
	for _, p := range []core.PodSpec{m.controller.Spec.Template.Spec, m.node.Spec.Template.Spec} {
		for _, c := range p.Containers {
			image, tag, _ := strings.Cut(c.Image, ":")
			used[image] = tag
			wrong = append(wrong, differ(map[string][2]any{
				"the container of " + c.Image: {c.Name, strings.TrimPrefix(image, "ghcr.io/causeway-csi/")},
				c.Name + ": imagePullPolicy":  {c.ImagePullPolicy, core.PullIfNotPresent},
				c.Name + ": command":          {len(c.Command), 0}, // the image has it
			})...)
		}
	}
	want := map[string]string{"ghcr.io/causeway-csi/driver": "dev", "ghcr.io/causeway-csi/csi-sidecars": "dev",
		"ghcr.io/causeway-csi/csi-sidecars-node": "dev"}
	return append(wrong, differ(map[string][2]any{"images": {used, want}, "the kustomization's": {m.images, want}})...)
}

// checkReplicas: two controllers are on different nodes; a node has a single process for a root.
func (m *manifests) checkReplicas() []string {
	d, n := m.controller.Spec, m.node.Spec
	labels := d.Selector.MatchLabels
	var spread []string
	for _, c := range d.Template.Spec.TopologySpreadConstraints {
		if reflect.DeepEqual(c.LabelSelector.MatchLabels, labels) && c.MaxSkew == 1 {
			spread = append(spread, c.TopologyKey)
		}
	}
	var surge intstr.IntOrString
	if n.UpdateStrategy.RollingUpdate == nil || n.UpdateStrategy.RollingUpdate.MaxSurge == nil {
		surge = intstr.FromString("not said")
	} else {
		surge = *n.UpdateStrategy.RollingUpdate.MaxSurge
	}
	linux := map[string]string{"kubernetes.io/os": "linux"}
	return differ(map[string][2]any{
		"replicas":              {d.Replicas, new(int32(2))},
		"spread":                {spread, []string{"kubernetes.io/hostname"}},
		"the budget's pods":     {m.budget.Spec.Selector, d.Selector},
		"the budget":            {m.budget.Spec.MaxUnavailable, new(intstr.FromInt32(1))},
		"nodes' maxSurge":       {surge, intstr.FromInt32(0)},
		"nodes' tolerations":    {n.Template.Spec.Tolerations, []core.Toleration{{Operator: core.TolerationOpExists}}},
		"nodes' selector":       {n.Template.Spec.NodeSelector, linux},
		"controller's selector": {d.Template.Spec.NodeSelector, linux},
		"nodes' priority":       {n.Template.Spec.PriorityClassName, "system-node-critical"},
		"controller's priority": {d.Template.Spec.PriorityClassName, "system-cluster-critical"},
		"an election":           {given(container(d.Template.Spec, "csi-sidecars"))["leader-election"], "true"},
		"host's namespaces": {n.Template.Spec.HostNetwork || n.Template.Spec.HostPID || n.Template.Spec.HostIPC,
			false},
		"labels and selector": {d.Template.Labels["app.kubernetes.io/name"] + n.Template.Labels["app.kubernetes.io/name"], labels["app.kubernetes.io/name"] + n.Selector.MatchLabels["app.kubernetes.io/name"]},
	})
}

// checkAPI: nodes have accounts without a token and without rights; of the controller's containers
// only the sidecars have a token.
func (m *manifests) checkAPI() []string {
	c, n := m.controller.Spec.Template.Spec, m.node.Spec.Template.Spec
	var accounts []string
	for name, a := range m.accounts {
		accounts = append(accounts, fmt.Sprintf("%s %t", name, a.AutomountServiceAccountToken == nil ||
			*a.AutomountServiceAccountToken))
	}
	slices.Sort(accounts)
	return differ(map[string][2]any{
		"accounts, and whether they give tokens away": {accounts,
			[]string{"causeway-controller false", "causeway-node false"}},
		"the controller's account":  {c.ServiceAccountName, "causeway-controller"},
		"the nodes' account":        {n.ServiceAccountName, "causeway-node"},
		"a token in the controller": {c.AutomountServiceAccountToken, new(false)},
		"a token on nodes":          {n.AutomountServiceAccountToken, new(false)},
		"who mounts a token":        {append(tokens(c), tokens(n)...), []string{"csi-sidecars"}},
	})
}

// tokens returns the containers that mount a token.
func tokens(p core.PodSpec) (who []string) {
	for _, c := range p.Containers {
		for _, m := range c.VolumeMounts {
			_, v := volume(p, c, m.Name)
			if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources,
				func(s core.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
				who = append(who, c.Name)
			}
		}
	}
	return who
}

// checkPaths: the driver has the kubelet's directory and its root at the paths of the node; all
// containers use the same socket.
func (m *manifests) checkPaths() []string {
	pod := m.node.Spec.Template.Spec
	driver, sidecars := container(pod, "driver"), container(pod, "csi-sidecars-node")
	flags, more := given(driver), given(sidecars)
	path := func(c core.Container, name string) string {
		mount, v := volume(pod, c, name)
		if v.HostPath == nil || v.HostPath.Type == nil {
			return ""
		}
		propagation := core.MountPropagationNone
		if mount.MountPropagation != nil {
			propagation = *mount.MountPropagation
		}
		return fmt.Sprint(v.HostPath.Path, " ", *v.HostPath.Type, " at ", mount.MountPath, " ", propagation)
	}
	kubelet, root := flags["kubelet-dir"], flags["root"]
	plugin := kubelet + "/plugins/" + driverName
	return differ(map[string][2]any{
		"the kubelet's": {path(driver, "kubelet"), kubelet + " Directory at " + kubelet + " Bidirectional"},
		// it must exist: its disk may not be mounted
		"the root":      {path(driver, "root"), root + " Directory at " + root + " HostToContainer"},
		"devices":       {path(driver, "dev"), "/dev Directory at /dev None"},
		"the socket":    {flags["endpoint"], "unix://" + plugin + "/csi.sock"},
		"the sidecars'": {path(sidecars, "plugin"), plugin + " DirectoryOrCreate at /csi None"},
		"the registry": {path(sidecars, "registration"),
			kubelet + "/plugins_registry Directory at /registration None"},
		"their socket":       {more["csi-address"], "/csi/csi.sock"},
		"what is registered": {more["node-driver-registrar-kubelet-registration-path"], plugin + "/csi.sock"},
		"where":              {more["node-driver-registrar-plugin-registration-path"], "/registration"},
		"the node's name":    {flags["node-id"], "$(NODE_NAME)"},
		"where it comes from": {driver.Env,
			[]core.EnvVar{{Name: "NODE_NAME",
				ValueFrom: &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}},
		// on the node's /dev
		"last words": {strings.HasPrefix(cmp.Or(driver.TerminationMessagePath,
			core.TerminationMessagePathDefault), "/dev/"), false},
	})
}

// checkProbes: a driver is never restarted for its disk, and each process has its own port.
func (m *manifests) checkProbes() (wrong []string) {
	get := func(p *core.Probe) string {
		if p == nil || p.HTTPGet == nil {
			return "none"
		}
		return p.HTTPGet.Path + " " + p.HTTPGet.Port.String()
	}
	for pod, want := range map[*core.PodSpec]map[string][2]string{
		&m.controller.Spec.Template.Spec: {"driver": {"/healthz driver-http", "/readyz driver-http"},
			"csi-sidecars": {"/healthz sidecars-http", "/readyz sidecars-http"}},
		&m.node.Spec.Template.Spec: {"driver": {"/healthz driver-http", "/healthz 9808"},
			"csi-sidecars-node": {"/healthz sidecars-http", "none"}},
	} {
		ports := map[int32]bool{9808: true}
		for _, c := range pod.Containers {
			named := map[string]int32{}
			for _, p := range c.Ports {
				if ports[p.ContainerPort] {
					wrong = append(wrong, fmt.Sprintf("%s: port %d is there twice", c.Name, p.ContainerPort))
				}
				ports[p.ContainerPort], named[p.Name] = true, p.ContainerPort
			}
			http := cmp.Or(named["driver-http"], named["sidecars-http"])
			wrong = append(wrong, differ(map[string][2]any{
				c.Name + " probes":          {[2]string{get(c.LivenessProbe), get(c.ReadinessProbe)}, want[c.Name]},
				c.Name + " --http-endpoint": {given(c)["http-endpoint"], fmt.Sprint(":", http)},
			})...)
		}
	}
	probe := given(container(m.node.Spec.Template.Spec, "csi-sidecars-node"))["livenessprobe-health-port"]
	return append(wrong, differ(map[string][2]any{"livenessprobe's port": {probe, "9808"}})...)
}

// checkEnd: a pod is killed only after all in it had the time that they are given.
func (m *manifests) checkEnd() (wrong []string) {
	const traces = 5 * time.Second // in which the driver sends its last spans
	for _, p := range []core.PodSpec{m.controller.Spec.Template.Spec, m.node.Spec.Template.Spec} {
		grace := time.Duration(0)
		if p.TerminationGracePeriodSeconds != nil {
			grace = time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
		}
		for _, c := range p.Containers {
			flags := given(c)
			takes, err := time.ParseDuration(cmp.Or(flags["drain-timeout"], flags["shutdown-timeout"]))
			if err != nil || takes+traces >= grace {
				wrong = append(wrong, fmt.Sprintf("%s: %s of %s: %v", c.Name, takes, grace, err))
			}
		}
	}
	return wrong
}

// checkResources: requests for all; a limit of CPU only makes the node's pods wait, and a limit of
// memory can kill a driver that has a filesystem frozen.
func (m *manifests) checkResources() (wrong []string) {
	for _, p := range []core.PodSpec{m.controller.Spec.Template.Spec, m.node.Spec.Template.Spec} {
		for _, c := range p.Containers {
			if r := c.Resources; len(r.Limits) > 0 || r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() {
				wrong = append(wrong, fmt.Sprintf("%s: %v", c.Name, r))
			}
		}
	}
	return wrong
}

// workloads are kinds that have pods.
var workloads = []string{"Pod", "ReplicaSet", "Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob"}

// checkNames: each object with a namespace is in the driver's namespace, whose network policy
// admits the nodes' pods; and each object with pods is checked.
func (m *manifests) checkNames() (wrong []string) {
	cluster := []string{"Namespace", "CSIDriver", "StorageClass", "VolumeSnapshotClass", "VolumeGroupSnapshotClass",
		"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
	for _, o := range m.all {
		want := namespace
		if slices.Contains(cluster, o.Kind) {
			want = ""
		}
		if id := o.Kind + "/" + o.Metadata.Name; slices.Contains(workloads, o.Kind) &&
			id != "Deployment/causeway-controller" && id != "DaemonSet/causeway-node" {
			wrong = append(wrong, id+" is held to no rule")
		}
		if strings.HasSuffix(o.Kind, "SnapshotClass") && o.Driver != driverName {
			wrong = append(wrong, fmt.Sprintf("%s %s is of %q", o.Kind, o.Metadata.Name, o.Driver))
		}
		if o.Metadata.Namespace != want {
			wrong = append(wrong, fmt.Sprintf("%s %s is in the namespace %q", o.Kind, o.Metadata.Name,
				o.Metadata.Namespace))
		}
	}
	return append(wrong, differ(map[string][2]any{
		"the level of Pod Security": {m.namespace.Labels["pod-security.kubernetes.io/enforce"], "privileged"},
		"the router's driver":       {m.router()["driver-name"], driverName},
		"the nodes' driver":         {given(container(m.node.Spec.Template.Spec, "driver"))["driver-name"], driverName},
	})...)
}

// own are the flags of csi-sidecars that no file in sidecars/ has.
var own = map[string]string{
	"controllers": "provisioner,resizer,snapshotter,health-monitor", "csi-address": "/csi/csi.sock", "http-endpoint": ":9811", "leader-election": "true",
	"shutdown-timeout": "4s", "health-monitor-pod-events": "false",
}

// checkSidecars compares the flags of csi-sidecars with those in sidecars/.
func (m *manifests) checkSidecars(files map[string]string) (wrong []string) {
	want := maps.Clone(own)
	for name, text := range files {
		args, bad := arguments(text)
		wrong = append(wrong, bad...)
		for _, a := range args {
			if a.name != "leader-election" { // the process's
				want[strings.TrimPrefix(name, "csi-")+"-"+a.name] = a.value
			}
		}
	}
	c := container(m.controller.Spec.Template.Spec, "csi-sidecars")
	have := given(c)
	if len(have) != len(c.Args) {
		wrong = append(wrong, "a flag is there twice")
	}
	for name := range maps.Keys(have) {
		if _, ok := want[name]; !ok {
			wrong = append(wrong, "--"+name+" is nowhere else")
		}
	}
	for name, value := range want {
		if have[name] != value {
			wrong = append(wrong, fmt.Sprintf("--%s=%s, want %s", name, have[name], value))
		}
	}
	return wrong
}

// linuxFiles reads deploy/linux.
func linuxFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{kustomization: read(t, "deploy", "linux", kustomization)}
	for _, name := range resources(t, "deploy", "linux") {
		files[name] = read(t, "deploy", "linux", name)
	}
	return files
}

func argsFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for name := range sidecars {
		files[name] = read(t, "deploy", "sidecars", name+".args")
	}
	return files
}

// check returns the errors of the files of deploy/linux.
func check(files, args map[string]string, table string) (wrong []string) {
	m, err := parse(files)
	if err != nil {
		return []string{err.Error()}
	}
	for about, rule := range rules {
		for _, w := range rule(m) {
			wrong = append(wrong, about+": "+w)
		}
	}
	for _, w := range m.checkSidecars(args) {
		wrong = append(wrong, "flags of csi-sidecars: "+w)
	}
	return append(wrong, m.checkPrivileges(table)...)
}

func TestLinux(t *testing.T) {
	for _, wrong := range check(linuxFiles(t), argsFiles(t), read(t, "docs", "how-to", "install.md")) {
		t.Error(wrong)
	}
}

// TestEveryFileIsListed: a file that no kustomization lists is never applied.
func TestEveryFileIsListed(t *testing.T) {
	for _, dir := range []string{"linux", "linux/cert-manager", "linux/snapshot-controller", "linux/network-policy",
		"linux/attributes"} {
		files, err := filepath.Glob(filepath.Join(root, "deploy", dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range files {
			files[i] = filepath.Base(files[i])
		}
		listed := append(resources(t, "deploy", dir), kustomization)
		slices.Sort(files)
		slices.Sort(listed)
		if !slices.Equal(files, listed) {
			t.Errorf("%s has %q, and its kustomization %q", dir, files, listed)
		}
	}
}
