package live

import (
	"errors"
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
)

// podSteps are faults of the pods of the driver.
func podSteps() []step {
	const pageInstall = "docs/how-to/install.md#5-check-the-installation"
	updates := want{check: "versions", cause: "run different versions"}
	return []step{
		{name: "pods that are rejected", faults: []fault{
			{name: "Pod Security",
				named: []want{{"admission", "DaemonSet/causeway-node", "Pod Security rejects the pods",
					"label --overwrite namespace causeway pod-security.kubernetes.io/enforce=privileged",
					"docs/how-to/install.md#4-install"}},
				also: []want{{check: "workloads", object: "DaemonSet/causeway-node", cause: "pods of the driver do not exist"},
					{check: "router", cause: "does not reach a node"}},
				cause: func(s *scene) {
					s.edit("namespace", install.Namespace, `"pod-security.kubernetes.io/enforce":"privileged"`,
						`"pod-security.kubernetes.io/enforce":"baseline"`)
					s.replacePods(nodes[1])
				}},
			{name: "a policy",
				named: []want{{"admission", "Deployment/causeway-controller", "an admission policy rejects the pods",
					"in that policy", "docs/how-to/install.md#privileges"}},
				cause: func(s *scene) {
					s.later(func() {
						s.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "no-controllers")
					})
					s.apply(policy)
					await.NoError(s, "the policy is in force", func() error {
						_, err := s.try("-n", install.Namespace, "run", "x", "--image=x", "--dry-run=server", "--labels="+controllerPod)
						switch {
						case err == nil:
							return errors.New("a pod is permitted")
						case !strings.Contains(err.Error(), "no controllers here"):
							return err
						}
						return nil
					})
					s.deleteOne(controllerPod)
				}},
		}},
		{name: "pods that do not start", faults: []fault{
			{name: "an image that cannot be pulled",
				named: []want{{"pods", "Pod/causeway-node-", "the node cannot pull an image", "images.registry",
					pageInstall}},
				also: []want{{check: "router", cause: "does not reach a node"},
					{check: "pods", cause: "does not start"}}, // while it is pulled
				cause: func(s *scene) {
					s.patch("daemonset", "causeway-node", `[{"op":"replace","path":"/spec/template/spec/containers/1/image",
						"value":"registry.invalid/csi-sidecars-node:v9"}]`)
				}},
			{name: "no secret with certificates",
				named: []want{{"pods", "Pod/causeway-controller-", "a secret does not exist", "make the certificates",
					"docs/how-to/install.md#3-the-certificates"}},
				cause: func(s *scene) {
					s.without("secret", "causeway-router-generated")
					s.deleteOne(controllerPod)
				}},
		}},
		{name: "more pods that do not start", faults: []fault{
			{name: "the root of the kubelet is elsewhere",
				named: []want{{"pods", "Pod/causeway-node-", "the kubelet's directory is elsewhere", "set kubeletDir",
					"docs/how-to/troubleshooting.md#the-driver-does-not-start"}},
				also: []want{{check: "router", cause: "does not reach a node"}},
				cause: func(s *scene) {
					s.edit("daemonset", "causeway-node", `"path":"/var/lib/kubelet`, `"path":"/var/lib/k3s/kubelet`)
				}},
			{name: "no ConfigMap",
				named: []want{{"pods", "Pod/causeway-controller-", "a ConfigMap of the installation does not exist",
					"apply the chart", "docs/how-to/install.md#objects"}},
				cause: func(s *scene) {
					s.without("configmap", "causeway-forgotten-nodes")
					s.deleteOne(controllerPod)
				}},
		}},
		{name: "pods that end", faults: []fault{
			{name: "an unknown flag",
				named: []want{{"pods", "Pod/causeway-node-", "the driver does not accept its command line",
					"correct extraArgs", pageInstall}},
				also:  []want{{check: "router", cause: "does not reach a node"}, {check: "sidecars-ready", cause: "the driver's socket"}},
				cause: func(s *scene) { s.addFlag("daemonset", "causeway-node", 0, "--no-such-flag") }},
			{name: "no room for a pod",
				named: []want{{"pods", "Pod/causeway-controller-", "no node has enough cpu or memory", "free resources",
					pageInstall}},
				cause: func(s *scene) {
					s.patch("deployment", "causeway-controller", `[{"op":"replace",
						"path":"/spec/template/spec/containers/0/resources/requests/cpu","value":"1000"}]`)
				}},
		}},
		{name: "sockets", faults: []fault{
			{name: "a driver without its socket",
				named: []want{{"sidecars-ready", "Pod/causeway-node-", "the driver's socket does not exist",
					"log of the container driver", "docs/how-to/troubleshooting.md#the-sidecars-are-not-ready"}},
				also: []want{{check: "router", cause: "does not reach a node"}, {check: "pods"}, {check: "registration"}},
				cause: func(s *scene) {
					s.addFlag("daemonset", "causeway-node", 1, "--csi-address=/csi/other.sock")
				}},
			{name: "a socket that the sidecar may not open", alerts: []string{"CausewaySidecarsNotReady"},
				rows: []string{"The sidecars are not ready: `Cannot open the driver's socket … permission denied`, `dial unix …: connect: permission denied`"},
				named: []want{{"sidecars-ready", "Pod/causeway-controller-", "may not open the driver's socket",
					"user of the pod's containers", "docs/how-to/troubleshooting.md#the-sidecars-are-not-ready"}},
				also: []want{{check: "pods"}},
				cause: func(s *scene) {
					s.patch("deployment", "causeway-controller", `[{"op":"add",
						"path":"/spec/template/spec/containers/1/securityContext/runAsUser","value":12345},{"op":"add",
						"path":"/spec/template/spec/containers/1/securityContext/runAsGroup","value":12345}]`)
				}},
		}},
		{name: "a directory of the kubelet", faults: []fault{
			{name: "a registration directory that cannot be written",
				rows: []string{"The sidecars are not ready: `Cannot register the driver`, `the registration socket …`"},
				named: []want{{"sidecars-ready", "on " + "node-2", "not registered with the kubelet", "set kubeletDir",
					"docs/how-to/troubleshooting.md#the-sidecars-are-not-ready"},
					{"registration", "Node/node-2", "the kubelet of the node does not know the driver", "csi-sidecars-node",
						"docs/how-to/troubleshooting.md#the-sidecars-are-not-ready"}},
				cause: func(s *scene) {
					const directory = "/var/lib/kubelet/plugins_registry"
					s.use(volumeOf{name: "unregistered", node: &nodes[1], without: true})
					s.later(func() { s.replacePods(nodes[1]) }) // the container has a mount of its own
					s.later(func() { s.on(nodes[1], "umount "+directory) })
					s.on(nodes[1], "rm -f "+directory+"/*; mount --bind "+directory+" "+directory+" && mount -o remount,bind,ro "+directory)
					s.replacePods(nodes[1])
				}},
			{name: "a pod on a node without the driver",
				rows: []string{"A pod does not start: no code, `not found in the list of registered CSI drivers`"},
				named: []want{{"pods-with-volumes", "Pod/default/unregistered", "the driver is not registered on the node", "see the pod of the driver",
					"docs/how-to/troubleshooting.md#the-sidecars-are-not-ready"}},
				cause: func(s *scene) { s.apply(pod("unregistered", nodes[1].Name, "unregistered")) }},
		}},
		{name: "no controller", faults: []fault{
			{name: "no controller", alerts: []string{"CausewayControllerMissing"},
				named: []want{{"workloads", "Deployment/causeway-controller", "scaled to 0", "--replicas=2",
					"docs/how-to/node-failures.md"}},
				cause: func(s *scene) {
					s.later(func() { s.kubectl("-n", install.Namespace, "scale", controller, "--replicas=2") })
					s.kubectl("-n", install.Namespace, "scale", controller, "--replicas=0")
				}},
		}},
		{name: "no workloads", faults: []fault{
			{name: "no Deployment",
				named: []want{{"workloads", "Deployment of " + driverName, "the controller is missing",
					"apply the chart", "docs/how-to/install.md#objects"}},
				cause: func(s *scene) { s.without("deployment", "causeway-controller") }},
		}},
		{name: "no workloads on nodes", faults: []fault{
			{name: "no DaemonSet",
				named: []want{{"workloads", "DaemonSet of " + driverName, "no DaemonSet runs the driver",
					"apply the chart", "docs/how-to/install.md#objects"}},
				also:  []want{restarting},
				cause: func(s *scene) { s.without("daemonset", "causeway-node") }},
		}},
		{name: "an update that is not complete", faults: []fault{
			{name: "two versions", alerts: []string{"CausewayVersionSkew"},
				named: []want{updates.with(driverName, "rollout status", "docs/how-to/node-failures.md")},
				cause: (*scene).updateOneNode},
		}},
	}
}

func (w want) with(object, remedy, page string) want {
	w.object, w.remedy, w.page = object, remedy, page
	return w
}

const policy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-controllers}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: causeway}}
    objectSelector: {matchLabels: {app.kubernetes.io/name: causeway-controller}}
  validations: [{expression: "false", message: "no controllers here"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-controllers}
spec: {policyName: no-controllers, validationActions: [Deny]}
`

// addFlag adds a flag to a container.
func (s *scene) addFlag(kind, name string, container int, flag string) {
	s.Helper()
	s.patch(kind, name, fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/%d/args/-","value":%q}]`,
		container, flag))
}

// updateOneNode gives the pod of a node another release of the driver.
func (s *scene) updateOneNode() {
	s.Helper()
	s.otherImages()
	s.patch("daemonset", "causeway-node", `[{"op":"add","path":"/spec/updateStrategy",
		"value":{"type":"OnDelete"}},{"op":"replace","path":"/spec/template/spec/containers/0/image",
		"value":"ghcr.io/causeway-csi/driver:other"}]`)
	s.later(func() { s.replacePods(nodes[1]) }) // with the strategy OnDelete nothing replaces it
	s.replacePods(nodes[1])
}
