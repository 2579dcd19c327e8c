package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// pod makes a pod as a controller does that got it from a template, and has its kubelet tell its
// state.
func (l *loader) pod(ctx context.Context, i int) error {
	p := newPod(i, nodeName(i%l.share(nodes)))
	if i < l.share(volumes) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(i)}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "data", MountPath: "/var/lib/data"})
	}
	all := l.kube.CoreV1().Pods(metav1.NamespaceDefault)
	p, err := all.Create(ctx, p, byManager)
	if err != nil {
		return err
	}
	p.Status = podStatus(p, i)
	_, err = all.UpdateStatus(ctx, p, thenKubelet)
	return err
}

func newPod(i int, node string) *corev1.Pod {
	app := fmt.Sprintf("service-%d", i%200)
	own, grace := true, int64(30)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%05d", app, hex(i%200, 8), i),
			Labels: map[string]string{"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-production",
				"app.kubernetes.io/version": "1.42.0",
				"app.kubernetes.io/part-of": "shop", "pod-template-hash": hex(i%200, 8), "team": fmt.Sprint("team-",
					i%7)},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
				"checksum/config":                   hex(i%200, 64),
				"kubectl.kubernetes.io/restartedAt": "2026-11-01T09:30:00Z", "cni.example.com/podIP": podIP(i)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet",
				Name: app + "-" + hex(i%200, 8), UID: "0c0ffee0-0000-4000-8000-000000000000", Controller: &own,
				BlockOwnerDeletion: &own}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{container("main", app, 10), container("proxy", "proxy", 2)},
			Volumes: []corev1.Volume{
				{Name: "config",
					VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: app}}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "tls",
					VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: app + "-tls"}}},
			},
			Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists",
				Effect: "NoExecute"}, {Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: zoneKey,
				WhenUnsatisfiable: corev1.ScheduleAnyway,
				LabelSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app.kubernetes.io/name": app}}}},
		},
	}
	return p
}

func podIP(i int) string { return fmt.Sprintf("10.64.%d.%d", i/250, i%250) }

// container has as many settings in its environment, and two that say where it is.
func container(name, image string, settings int) corev1.Container {
	check := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path,
			Port: intstr.FromInt32(8080), Scheme: "HTTP"}}, PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1,
			FailureThreshold: 3}
	}
	no := false
	c := corev1.Container{
		Name: name, Image: "registry.example.com/shop/" + image + ":1.42.0",
		Args: []string{"--config=/etc/" + image + "/config.yaml", "--log-level=info", "--listen=:8080"},
		Ports: []corev1.ContainerPort{{Name: "http-" + name, ContainerPort: 8080, Protocol: "TCP"},
			{Name: "metrics-" + name, ContainerPort: 9090, Protocol: "TCP"}},
		LivenessProbe: check("/healthz"), ReadinessProbe: check("/readyz"),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/" + image},
			{Name: "tmp", MountPath: "/tmp"}, {Name: "tls", MountPath: "/etc/tls", ReadOnly: true}},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		Env: []corev1.EnvVar{
			{Name: "POD_NAME",
				ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "POD_NAMESPACE",
				ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
		},
	}
	for j := range settings {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SERVICE_%d_URL", j),
			Value: fmt.Sprintf("http://service-%d.default.svc.cluster.local:8080/v1", j)})
	}
	return c
}

func podStatus(p *corev1.Pod, i int) corev1.PodStatus {
	now := metav1.Now()
	s := corev1.PodStatus{Phase: corev1.PodRunning, HostIP: fmt.Sprintf("10.0.%d.%d", i%500/250, i%250),
		PodIP: podIP(i), PodIPs: []corev1.PodIP{{IP: podIP(i)}}, StartTime: &now, QOSClass: corev1.PodQOSBurstable}
	for _, c := range []corev1.PodConditionType{"PodReadyToStartContainers", corev1.PodInitialized, corev1.PodReady,
		corev1.ContainersReady, corev1.PodScheduled} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: c, Status: "True", LastTransitionTime: now})
	}
	started := true
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, Ready: true, Started: &started, Image: c.Image,
				ImageID: c.Image + "@sha256:" + hex(i%200, 64), ContainerID: "containerd://" + hex(i,
					64), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	return s
}
