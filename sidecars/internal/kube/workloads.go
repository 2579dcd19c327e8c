package kube

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Paths in containers: of the driver's socket, and of the kubelet's registration directory.
const (
	socketDir       = "/csi"
	socketName      = "csi.sock"
	registrationDir = "/registration"
)

// Names of volumes.
const (
	socketVolume       = "socket-dir"
	pluginVolume       = "plugin-dir"
	registrationVolume = "registration-dir"
	kubeletVolume      = "kubelet-dir"
)

// yaml returns all objects, after a comment with the steps that are left to the reader.
func (m *driverManifest) yaml(rights []any) ([]byte, error) {
	var objects []any
	if m.driver != "" {
		objects = append(objects, m.csiDriver())
	}
	objects = append(objects, m.account(m.ServiceAccount, "controller"))
	objects = append(objects, rights...)
	deployment, err := withoutStatus(m.deployment())
	if err != nil {
		return nil, err
	}
	objects = append(objects, deployment)
	if m.driver != "" {
		nodes, err := withoutStatus(m.daemonSet())
		if err != nil {
			return nil, err
		}
		objects = append(objects, m.account(m.Prefix+"-node", "node"), nodes)
	}
	var out bytes.Buffer
	out.WriteString(m.intro())
	text, err := documents(objects)
	out.Write(text)
	return out.Bytes(), err
}

// intro has names that were checked, and so no line break: all of it is a comment.
func (m *driverManifest) intro() string {
	if m.driver == "" {
		return fmt.Sprintf("# Namespace %s must exist. The Pod Security level baseline is enough.\n", m.Namespace)
	}
	return fmt.Sprintf(`# Replace image, args and resources of the containers named driver: here they are placeholders.
# The driver must listen at $CSI_ENDPOINT.
# Namespace %s must exist. The Deployment's pods need the Pod Security level baseline, and the
# DaemonSet's pods need privileged.
`, m.Namespace)
}

// withoutStatus returns an object as a map without its status, which only the cluster writes.
func withoutStatus(o any) (any, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	delete(fields, "status")
	return fields, err
}

func (m *driverManifest) csiDriver() any {
	return storagev1.CSIDriver{
		TypeMeta:   metav1.TypeMeta{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver"},
		ObjectMeta: metav1.ObjectMeta{Name: m.driver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &m.Attach, StorageCapacity: &m.capacity},
	}
}

func (m *driverManifest) account(name, part string) any {
	return corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: m.Namespace, Labels: m.labels(part)},
	}
}

// deployment runs the controllers: two replicas where they are elected, else one that ends before
// the next starts.
func (m *driverManifest) deployment() *appsv1.Deployment {
	replicas, strategy := int32(1), appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	if m.elected {
		replicas, strategy = 2, appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}
	}
	pod := corev1.PodSpec{
		ServiceAccountName: m.ServiceAccount,
		PriorityClassName:  "system-cluster-critical",
		NodeSelector:       map[string]string{corev1.LabelOSStable: "linux"},
		SecurityContext:    podSecurity(),
		Containers:         []corev1.Container{m.sidecars()},

		TerminationGracePeriodSeconds: m.grace(),
	}
	if m.driver != "" {
		driver := m.driverContainer("--endpoint=$(CSI_ENDPOINT)")
		driver.VolumeMounts = []corev1.VolumeMount{{Name: socketVolume, MountPath: socketDir}}
		if m.probe != 0 {
			driver.LivenessProbe = m.driverProbe(m.probe)
		}
		pod.Containers = []corev1.Container{driver, m.sidecars()}
		pod.Volumes = []corev1.Volume{{Name: socketVolume,
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: m.meta("controller"),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Strategy: strategy,
			Selector: &metav1.LabelSelector{MatchLabels: m.labels("controller")},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: m.labels("controller")}, Spec: pod},
		},
	}
}

// sidecars is the container of csi-sidecars. docs/reference/benchmarks.md measures 82 MiB for it.
func (m *driverManifest) sidecars() corev1.Container {
	c := ourContainer("csi-sidecars", m.image, "50m", "96Mi")
	c.Args = []string{"--controllers=" + strings.Join(m.controllers, ",")}
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: int32(m.port)}}
	c.Env = []corev1.EnvVar{
		// The names that csi-sidecars reads: for leases, and for the owner and the namespace of
		// CSIStorageCapacity objects.
		fieldEnv("POD_NAME", "metadata.name"), fieldEnv("POD_NAMESPACE", "metadata.namespace"), fieldEnv("NAMESPACE",
			"metadata.namespace"),
	}
	if m.driver != "" {
		c.Args = append(c.Args, "--csi-address="+path.Join(socketDir, socketName))
		c.VolumeMounts = []corev1.VolumeMount{{Name: socketVolume, MountPath: socketDir, ReadOnly: true}}
	}
	if m.probe != 0 {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: "driver-probe", ContainerPort: int32(m.probe)})
	}
	c.Args = append(append(c.Args, fmt.Sprintf("--http-endpoint=:%d", m.port)), m.args...)
	return c
}

// daemonSet runs the driver and csi-sidecars-node on every node.
func (m *driverManifest) daemonSet() *appsv1.DaemonSet {
	yes, no := true, false
	both := corev1.MountPropagationBidirectional
	driver := m.driverContainer("--endpoint=$(CSI_ENDPOINT)", "--node-id=$(NODE_NAME)")
	driver.Env = append(driver.Env, fieldEnv("NODE_NAME", "spec.nodeName"))
	driver.LivenessProbe = m.driverProbe(nodeProbe)
	// the API server permits Bidirectional in privileged containers alone
	driver.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	driver.VolumeMounts = []corev1.VolumeMount{
		{Name: pluginVolume, MountPath: socketDir},
		{Name: kubeletVolume, MountPath: m.kubeletDir, MountPropagation: &both},
	}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet"},
		ObjectMeta: m.meta("node"),
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: m.labels("node")},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: m.labels("node")},
				Spec: corev1.PodSpec{
					// csi-sidecars-node does not use the API server
					ServiceAccountName: m.Prefix + "-node", AutomountServiceAccountToken: &no,
					PriorityClassName: "system-node-critical",
					NodeSelector:      map[string]string{corev1.LabelOSStable: "linux"},
					Tolerations:       []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					SecurityContext:   podSecurity(),
					Containers:        []corev1.Container{driver, m.nodeSidecars()},
					Volumes: []corev1.Volume{
						host(pluginVolume, m.pluginDir(), corev1.HostPathDirectoryOrCreate),
						host(registrationVolume, path.Join(m.kubeletDir, "plugins_registry"), corev1.HostPathDirectory),
						host(kubeletVolume, m.kubeletDir, corev1.HostPathDirectory),
					},
				}},
		},
	}
}

// Ports of csi-sidecars-node. Its pod has an address of its own.
const (
	nodePort  = 8080
	nodeProbe = 9808
)

// nodeSidecars is the container of csi-sidecars-node. docs/reference/benchmarks.md measures 14 MiB
// for it.
func (m *driverManifest) nodeSidecars() corev1.Container {
	c := ourContainer("csi-sidecars-node", m.nodeImage, "5m", "16Mi")
	c.Args = []string{
		"--controllers=node-driver-registrar,livenessprobe",
		"--csi-address=" + path.Join(socketDir, socketName),
		fmt.Sprintf("--http-endpoint=:%d", nodePort),
		"--node-driver-registrar-kubelet-registration-path=" + path.Join(m.pluginDir(), socketName),
		"--node-driver-registrar-plugin-registration-path=" + registrationDir,
		fmt.Sprintf("--livenessprobe-health-port=%d", nodeProbe),
	}
	if m.probeTimeout > 0 {
		c.Args = append(c.Args, "--livenessprobe-probe-timeout="+m.probeTimeout.String())
	}
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: nodePort},
		{Name: "driver-probe", ContainerPort: nodeProbe}}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: pluginVolume, MountPath: socketDir, ReadOnly: true},
		{Name: registrationVolume, MountPath: registrationDir},
	}
	return c
}

// driverContainer is the container that the driver's author completes.
func (m *driverManifest) driverContainer(args ...string) corev1.Container {
	return corev1.Container{
		Name: "driver", Image: m.driverImage, Args: args,
		Env:       []corev1.EnvVar{{Name: "CSI_ENDPOINT", Value: "unix://" + path.Join(socketDir, socketName)}},
		Resources: requests("10m", "64Mi"),
	}
}

// ourContainer is a container of csi-sidecars or csi-sidecars-node. It is root, without
// capabilities, because the sockets of most drivers, and the kubelet's directories, can only be
// opened by root.
func ourContainer(name, image, cpu, memory string) corev1.Container {
	yes, no, root := true, false, int64(0)
	return corev1.Container{
		Name: name, Image: image, Resources: requests(cpu, memory),
		LivenessProbe:            probe("/healthz", intstr.FromString("http")),
		ReadinessProbe:           probe("/readyz", intstr.FromString("http")),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// probe waits for longer than livenessprobe waits for the driver, 3 s by default, and gives a
// minute before a restart.
func probe(at string, port intstr.IntOrString) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: at, Port: port}},
		TimeoutSeconds: 5, PeriodSeconds: 10, FailureThreshold: 6,
	}
}

// driverProbe asks livenessprobe, and waits for longer than livenessprobe waits for the driver.
func (m *driverManifest) driverProbe(port int) *corev1.Probe {
	p := probe("/healthz", intstr.FromInt(port))
	if m.probeTimeout > 0 {
		p.TimeoutSeconds = int32(m.probeTimeout/time.Second) + 2
		p.PeriodSeconds = max(p.PeriodSeconds, p.TimeoutSeconds)
	}
	return p
}

// grace returns the time from SIGTERM to SIGKILL, in seconds, or nil for Kubernetes' 30.
func (m *driverManifest) grace() *int64 {
	const spare = 10
	if seconds := int64(m.shutdown/time.Second) + spare; seconds > corev1.DefaultTerminationGracePeriodSeconds {
		return &seconds
	}
	return nil
}

func podSecurity() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func requests(cpu, memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}
}

func fieldEnv(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name,
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
}

func host(name, at string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name,
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at, Type: &kind}}}
}
