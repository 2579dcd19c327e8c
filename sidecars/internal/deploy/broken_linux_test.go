package deploy

import (
	"slices"
	"strings"
	"testing"
)

// TestTheRulesSee breaks each rule in turn.
func TestTheRulesSee(t *testing.T) {
	const controller, node, driver, classes = "controller.yaml", "node.yaml", "csidriver.yaml", "classes.yaml"
	for _, tc := range []struct{ name, file, old, new, want string }{
		{"it is attached", driver, "attachRequired: false", "attachRequired: true", "the CSIDriver: spec"},
		{"inline volumes are not known", driver, "podInfoOnMount: true", "podInfoOnMount: false", "the CSIDriver: spec"},
		{"no inline volumes", driver, "[Persistent, Ephemeral]", "[Persistent]", "the CSIDriver: spec"},
		{"room is not counted", driver, "storageCapacity: true", "storageCapacity: false", "the CSIDriver: spec"},
		{"the group's policy is left out", driver, "fsGroupPolicy: File", "", "the CSIDriver: spec"},
		{"labels by mount", driver, "seLinuxMount: false", "seLinuxMount: true", "the CSIDriver: spec"},
		{"a field that does not exist", driver, "seLinuxMount: false", "seLinuxMounts: false", "unknown field"},
		{"another driver's name", driver, "name: hostpath.csi.causeway.dev", "name: hostpath.csi.k8s.io",
			"the CSIDriver: spec"},

		{"immediate binding", classes, "WaitForFirstConsumer", "Immediate", "causeway-hostpath binding"},
		{"no expansion", classes, "allowVolumeExpansion: true", "", "causeway-hostpath expansion"},
		{"another provisioner", classes, "provisioner: hostpath.csi.causeway.dev", "provisioner: hostpath.csi.k8s.io",
			"causeway-hostpath provisioner"},
		{"a filesystem for directories", classes, "kind: directory",
			"csi.storage.k8s.io/fstype: ext4\n  kind: directory", "storage classes: kinds"},

		{"snapshots of another driver", classes, "\ndriver: hostpath", "\ndriver: x",
			"VolumeGroupSnapshotClass causeway-hostpath is of"},

		{"one address for all", node, "clusterIP: None", "", "clusterIP"},
		{"only those that are ready", node, "publishNotReadyAddresses: true", "", "publishNotReadyAddresses"},
		{"two families", node, "SingleStack", "PreferDualStack", "ipFamilyPolicy"},
		{"the wrong pods", node, "selector: {app.kubernetes.io/name: causeway-node}",
			"selector: {app.kubernetes.io/name: causeway-controller}", "the nodes' addresses: selector"},
		{"another port", node, "--peer-listen=:9810", "--peer-listen=:9812", "--peer-listen"},
		{"a router elsewhere", controller, "causeway-nodes.$(NAMESPACE)", "causeway-node.$(NAMESPACE)", "--peers"},

		{"one file of a ConfigMap", controller, "mountPath: /forgotten,", "mountPath: /forgotten, subPath: nodes,",
			"subPath"},
		{"another file", controller, "/forgotten/nodes", "/forgotten/node", "its key is there"},
		{"no file", controller, "- --forgotten-nodes=/forgotten/nodes", "", "--forgotten-nodes"},
		{"a node is forgotten", controller, "# one node name per line", "node-1", "a node is in it"},

		{"capacity without a pod's name", controller, "{name: POD_NAME,", "{name: POD,", "capacity: env"},
		{"capacity of the ReplicaSet", controller, "ownerref-level=2", "ownerref-level=1", "capacity: owner"},
		{"no capacity", controller, "- --provisioner-enable-capacity\n", "", "capacity: enabled"},

		{"strict topology", controller, "- --provisioner-enable-capacity\n", "- --provisioner-enable-capacity\n        - --provisioner-strict-topology\n", "--provisioner-strict-topology is nowhere else"},
		{"upstream's immediate topology", controller, "        - --provisioner-immediate-topology=false\n", "",
			"--provisioner-immediate-topology=, want false"},
		{"a time-out for all", controller, "--provisioner-timeout=60s", "--timeout=60s", "--timeout is nowhere else"},
		{"few workers", controller, "worker-threads=100", "worker-threads=10",
			"--snapshotter-worker-threads=10, want 100"},
		{"pods are watched", controller, "pod-events=false", "pod-events=true", "--health-monitor-pod-events"},
		{"a useless attacher", controller, "--controllers=provisioner", "--controllers=attacher,provisioner",
			"--controllers"},
		{"nobody is elected", controller, "- --leader-election\n", "", "an election"},

		{"the nodes' key in the router", controller, "causeway-router-tls", "causeway-nodes-tls",
			"causeway-router-tls, its name"},
		{"the router's key on nodes", node, "      - name: dev\n", "      - name: more\n        secret: {secretName: causeway-router-tls}\n      - name: dev\n", "causeway-router-tls is another's"},
		{"a key for everybody", controller, "defaultMode: 0440}\n      - name: forgotten",
			"defaultMode: 0444}\n      - name: forgotten", "causeway-router-tls, its mode"},
		{"a key that is never renewed", node, "mountPath: /certs,", "mountPath: /certs, subPath: x,",
			"causeway-nodes-tls, its mount"},
		{"each node's own name", controller, "--peer-server=causeway-nodes", "--peer-server=nodes", "--peer-server"},

		{"a release beside the kustomization's", node, "ghcr.io/causeway-csi/driver:dev",
			"ghcr.io/causeway-csi/driver:v1", "images: images"},
		{"an image that is not set", kustomization, "- name: ghcr.io/causeway-csi/driver",
			"- name: ghcr.io/causeway-csi/drivers", "the kustomization's"},
		{"another image", node, "ghcr.io/causeway-csi/csi-sidecars-node", "ghcr.io/causeway-csi/csi-sidecars",
			"the container of"},
		{"pulled each time", node, "IfNotPresent", "Always", "imagePullPolicy"},

		{"one replica", controller, "replicas: 2", "replicas: 1", "replicas: 1, want 2"},
		{"both on one node", controller, "topologyKey: kubernetes.io/hostname",
			"topologyKey: topology.kubernetes.io/zone", "spread"},
		{"a budget of others", controller, "matchLabels: {app.kubernetes.io/name: causeway-controller}\n---",
			"matchLabels: {app.kubernetes.io/name: x}\n---", "the budget's pods"},
		{"two processes of a root", node, "maxSurge: 0, maxUnavailable: 10%", "maxSurge: 1, maxUnavailable: 0",
			"maxSurge"},
		{"not on tainted nodes", node, "- operator: Exists", "- operator: Exists\n        effect: NoSchedule",
			"nodes' tolerations"},
		{"on Windows", node, "kubernetes.io/os: linux", "kubernetes.io/arch: amd64", "nodes' selector"},
		{"a priority like any", controller, "system-cluster-critical", "default", "controller's priority"},
		{"the host's network", node, "shareProcessNamespace: true",
			"shareProcessNamespace: true\n      hostNetwork: true", "host's namespaces"},

		{"a token on nodes", node, "serviceAccountName: causeway-node\n      automountServiceAccountToken: false",
			"serviceAccountName: causeway-node", "a token on nodes"},
		{"a token for the router", controller, "serviceAccountName: causeway-controller\n      automountServiceAccountToken: false", "serviceAccountName: causeway-controller", "a token in the controller"},
		{"a token that the router mounts", controller, "- {name: certs, mountPath: /certs, readOnly: true}",
			"- {name: certs, mountPath: /certs, readOnly: true}\n        - {name: api-access, mountPath: " +
				"/api}", "who mounts a token"},
		{"an account that gives tokens away", node, "automountServiceAccountToken: false\n---", "---", "accounts"},
		{"the nodes have the controller's rights", node, "serviceAccountName: causeway-node",
			"serviceAccountName: causeway-controller", "the nodes' account"},

		{"mounts that nobody sees", node, "Bidirectional", "HostToContainer", "the kubelet's"},
		{"a disk that nobody sees", node, "mountPropagation: HostToContainer", "mountPropagation: None", "the root"},
		{"a root that is made", node, "path: /var/lib/causeway, type: Directory}",
			"path: /var/lib/causeway, type: DirectoryOrCreate}", "the root"},
		{"the container's own devices", node, "        - {name: dev, mountPath: /dev}\n", "", "devices"},
		{"a kubelet elsewhere", node, "--kubelet-dir=/var/lib/kubelet", "--kubelet-dir=/var/lib/k0s/kubelet",
			"the socket"},
		{"another socket is registered", node, "registration-path=/var/lib/kubelet/plugins/hostpath.csi.causeway.dev/csi.sock", "registration-path=/var/lib/kubelet/plugins/csi.sock", "what is registered"},
		{"a node's name that changes", node, "spec.nodeName", "metadata.name", "where it comes from"},
		{"last words in the node's /dev", node, "terminationMessagePath: /termination-log", "", "last words"},

		{"restarted for its disk", node, "livenessProbe:\n          httpGet: {path: /healthz, port: driver-http}",
			"livenessProbe:\n          httpGet: {path: /healthz, port: 9808}", "driver probes"},
		{"never ready", controller, "path: /readyz, port: driver-http", "path: /ready, port: driver-http",
			"driver probes"},
		{"a port twice", node, "containerPort: 9811", "containerPort: 9809", "port 9809 is there twice"},
		{"nobody listens", controller, "--http-endpoint=:9811", "--http-endpoint=:9812",
			"csi-sidecars --http-endpoint"},
		{"the probe listens elsewhere", node, "health-port=9808", "health-port=9807", "livenessprobe's port"},
		{"killed before it has drained", node, "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 25",
			"the end: driver"},
		{"a drain as long as the grace", controller, "--drain-timeout=20s", "--drain-timeout=30s", "the end: driver"},
		{"a limit", node, "memory: 40Mi", "memory: 40Mi\n          limits: {cpu: 1}", "resources: driver"},
		{"no request", controller, "cpu: 50m\n", "\n", "resources: csi-sidecars"},
		{"another namespace", node, "namespace: causeway", "namespace: kube-system",
			"is in the namespace \"kube-system\""},
		{"a namespace that lets no driver in", "namespace.yaml", "enforce: privileged", "enforce: restricted",
			"Pod Security"},
		{"another driver on nodes", node, "--driver-name=hostpath.csi.causeway.dev", "--driver-name=x.csi.causeway.dev",
			"the nodes' driver"},

		{"a privileged sidecar", node, "allowPrivilegeEscalation: false", "privileged: true",
			"no row for csi-sidecars-node: privileged"},
		{"root in the controller", controller, "runAsUser: 65532", "runAsUser: 0", "no row for csi-sidecars: uid 0"},
		{"anybody in the controller", controller, "runAsNonRoot: true", "", "no row for driver: no runAsNonRoot"},
		{"a capability", node, "drop: [ALL]", "drop: [ALL], add: [SYS_PTRACE]",
			"no row for csi-sidecars-node: capabilities"},
		{"capabilities", controller, "capabilities: {drop: [ALL]}", "", "no row for driver: capabilities"},
		{"a way to more", controller, "allowPrivilegeEscalation: false", "",
			"no row for driver: allowPrivilegeEscalation"},
		{"any system call", controller, "seccompProfile: {type: RuntimeDefault}", "",
			"no row for csi-sidecars: no seccomp profile"},
		{"a writable image", node, "privileged: true   # docs/how-to/install.md has the reasons\n          " +
			"readOnlyRootFilesystem: true", "privileged: true", "no row for driver: a writable root filesystem"},
		{"the node's disk", node, "hostPath: {path: /dev, type: Directory}", "hostPath: {path: /, type: Directory}",
			"no row for driver: hostPath `/`"},
		{"a socket that may be replaced", node, "- {name: plugin, mountPath: /csi, readOnly: true}",
			"- {name: plugin, mountPath: /csi}", "no row for csi-sidecars-node: hostPath " +
				"`/var/lib/kubelet/plugins/hostpath.csi.causeway.dev`"},
		{"a port of the host", node, "{name: peer, containerPort: 9810}",
			"{name: peer, containerPort: 9810, hostPort: 9810}", "no row for driver: a port of the host"},
		{"a row for nothing", node, "shareProcessNamespace: true", "",
			"a row for nothing: both: shareProcessNamespace"},
		{"pods that nobody looks at", node, "kind: Service\n", "kind: Pod\n", "Pod/causeway-nodes is held to no rule"},
		{"a container more", node, "      containers:\n",
			"      initContainers:\n      - {name: x, image: ghcr.io/causeway-csi/driver}\n      " +
				"containers:\n", "containers that nobody looks at"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := linuxFiles(t)
			text := files[tc.file]
			if files[tc.file] = strings.Replace(text, tc.old, tc.new, 1); files[tc.file] == text {
				t.Fatalf("%q is not in the file", tc.old)
			}
			wrong := check(files, argsFiles(t), read(t, "docs", "how-to", "install.md"))
			if !slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, tc.want) }) {
				t.Errorf("it says %q, want %q", wrong, tc.want)
			}
		})
	}
}

// TestTheTableOfFlags: a row of the documentation that goes, or is made up, is missed.
func TestTheTableOfFlags(t *testing.T) {
	page := read(t, "docs", "how-to", "install.md")
	for name, tc := range map[string]struct{ old, new, want string }{
		"a row is gone":    {"| `driver` | privileged |", "| `driver` | little |", "no row for driver: privileged"},
		"no reason":        {"| `driver` | privileged | Mounts, loop devices, and mounts that other containers see: see below. A privileged container has no seccomp or AppArmor profile, even if the pod sets one. |", "| `driver` | privileged | it is |", "no row for driver: privileged"},
		"the table's gone": {"\n## Privileges\n", "\n## Rights\n", "no table"},
	} {
		t.Run(name, func(t *testing.T) {
			broken := strings.Replace(page, tc.old, tc.new, 1)
			if wrong := check(linuxFiles(t), argsFiles(t), broken); broken == page ||
				!slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, tc.want) }) {
				t.Errorf("it says %q, want %q", wrong, tc.want)
			}
		})
	}
}

// TestAFlagOfAFileIsMissed: the files in sidecars/ are where flags are changed first.
func TestAFlagOfAFileIsMissed(t *testing.T) {
	args := argsFiles(t)
	args["csi-resizer"] += "\n# A reason that is long enough to be one.\n--workers=20\n"
	wrong := check(linuxFiles(t), args, read(t, "docs", "how-to", "install.md"))
	if want := "flags of csi-sidecars: --resizer-workers=, want 20"; !slices.Contains(wrong, want) {
		t.Errorf("it says %q, want %q", wrong, want)
	}
}
