package live

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
)

const (
	driverName    = "hostpath.csi.causeway.dev"
	controller    = "deployment/causeway-controller"
	controllerPod = "app.kubernetes.io/name=causeway-controller"
	nodePod       = "app.kubernetes.io/name=causeway-node"
	second        = "second" // the namespace of another installation
)

// objectSteps are faults of the objects of an installation.
func objectSteps() []step {
	return []step{
		{name: "objects", faults: []fault{
			{name: "no CSIDriver",
				named: []want{{"csidriver", "CSIDriver/" + driverName, "the CSIDriver is missing", "apply the chart",
					"docs/how-to/install.md#objects"}},
				cause: func(s *scene) { s.without("csidriver", driverName) }},
			{name: "a class of a driver that does not exist",
				rows: []string{"A claim stays Pending: no event"},
				named: []want{{"storage-classes", "StorageClass/misspelled", "a driver that does not exist",
					"right provisioner", "docs/how-to/troubleshooting.md#a-claim-stays-pending"}},
				cause: func(s *scene) {
					s.apply(class("misspelled", "hostpth.csi.causeway.dev", "Immediate", "kind: directory"))
					s.later(func() { s.kubectl("delete", "storageclass", "misspelled") })
				}},
			{name: "no right to PersistentVolumes",
				named: []want{{"rights", "ServiceAccount/causeway/causeway-controller", "lacks rights",
					"apply the roles", "docs/explanation/csi-sidecars.md#rights"}},
				cause: func(s *scene) {
					s.edit("clusterrole", "causeway-provisioner", `"persistentvolumes"`, `"no-persistentvolumes"`)
				}},
		}},
		{name: "other objects", faults: []fault{
			{name: "a CSIDriver that wants attachments",
				named: []want{{"csidriver", "CSIDriver/" + driverName, "properties of another driver",
					"delete the CSIDriver", "docs/how-to/install.md#objects"}},
				cause: func(s *scene) {
					s.edit("csidriver", driverName, `"attachRequired":false`, `"attachRequired":true`)
				}},
			{name: "old CRDs of snapshots",
				named: []want{{"snapshot-crds", "causeway-controller", "snapshot.storage.k8s.io are too old",
					"upgrade the CRDs", "docs/how-to/install.md#2-the-crds-of-snapshots"}},
				cause: (*scene).oldCRDs},
			{name: "two installations", alerts: []string{"CausewayTwoLeaders"},
				named: []want{{"one-installation", driverName, "two installations have the same driver name",
					"uninstall the one that holds no volumes", "docs/how-to/install.md#objects"}},
				also:  []want{{check: "workloads", cause: "no DaemonSet runs the driver"}},
				cause: (*scene).installAgain},
		}},
	}
}

// class returns a class.
func class(name, provisioner, mode, parameters string, more ...string) string {
	return fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: %s
parameters: {%s}
volumeBindingMode: %s
allowVolumeExpansion: true
%s
`, name, provisioner, parameters, mode, strings.Join(more, "\n"))
}

// installAgain copies the controller into another namespace, where it elects another leader.
func (s *scene) installAgain() {
	s.Helper()
	s.later(func() {
		s.kubectl("delete", "clusterrolebinding", "-l", "of=second")
		s.kubectl("delete", "namespace", second)
	})
	s.kubectl("create", "namespace", second)
	kinds := map[string]string{"serviceaccount": "causeway-controller", "role": "causeway", "rolebinding": "causeway",
		"secret": "causeway-router-generated", "configmap": "causeway-forgotten-nodes", "deployment": "causeway-controller"}
	for kind, name := range kinds {
		object := s.saved(kind, name)
		for from, to := range map[string]string{`"namespace":"causeway"`: `"namespace":"second"`,
			"$(NAMESPACE)": install.Namespace, `"meta.helm.sh/release-name":"causeway",`: ""} {
			object = strings.ReplaceAll(object, from, to)
		}
		s.apply(object)
	}
	for _, role := range []string{"provisioner", "resizer", "snapshotter", "health-monitor"} {
		s.apply(fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: second-%[1]s, labels: {of: second}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: causeway-%[1]s}
subjects: [{kind: ServiceAccount, name: causeway-controller, namespace: second}]
`, role))
	}
	await.NoError(s, "the second controller is ready", func() error {
		_, err := s.try("-n", second, "rollout", "status", controller, "--timeout=5s")
		return err
	})
}
