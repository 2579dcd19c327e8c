package live

import (
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
)

// beforeSteps are faults before the installation of a second release, for doctor --pre.
func beforeSteps() []step {
	const directory, page = "/var/lib/kubelet/second", "docs/how-to/install.md#1-the-nodes-directory"
	doctor := []string{"--pre", "--nodes", "--namespace=" + second, "--driver=second.csi.example.com", "--root=" + directory}
	begin := func(s *scene) { // the end of the step removes both, after the last run of doctor
		s.Cleanup(func() { s.kubectl("delete", "namespace", second, "--ignore-not-found") })
		s.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: second, labels: {pod-security.kubernetes.io/enforce: privileged}}\n")
		for _, n := range nodes {
			s.Cleanup(func() { s.on(n, "rm -rf "+directory) })
			s.on(n, "mkdir -p "+directory)
		}
	}
	on := func(n int, change, repair string) func(*scene) {
		return func(s *scene) {
			s.later(func() { s.on(nodes[n], repair) })
			s.on(nodes[n], change)
		}
	}
	steps := []step{
		{name: "before: directories", faults: []fault{
			{name: "no directory",
				named: []want{{"node-root", "Node/node-1", "the directory of the volumes is missing", "mount the disk", page}},
				cause: on(0, "rmdir "+directory, "mkdir -p "+directory)},
			{name: "a directory with other files",
				named: []want{{"node-root", "Node/node-2", "has files and no identity.json", "delete nothing", pageNotReady}},
				cause: on(1, "touch "+directory+"/file", "rm "+directory+"/file")},
			{name: "a quota",
				named: []want{{"quota", "ResourceQuota/small", "too small for the pods of the driver", "raise the quota",
					"docs/how-to/install.md#5-check-the-installation"}},
				cause: func(s *scene) {
					s.later(func() { s.kubectl("-n", second, "delete", "resourcequota", "small") })
					s.apply("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: small, namespace: second}\nspec: {hard: {pods: \"3\"}}\n")
				}},
			{name: "a CSIDriver of this name",
				named: []want{{"name", "second.csi.example.com", "a driver of this name is installed already", "driverName",
					"docs/how-to/install.md#objects"}},
				cause: func(s *scene) {
					s.later(func() { s.kubectl("delete", "csidriver", "second.csi.example.com") })
					s.apply("apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: second.csi.example.com}\nspec: {}\n")
				}},
			{name: "CRDs of group snapshots that are missing",
				named: []want{{"crds", "CRDs of groupsnapshot.storage.k8s.io", "none of group snapshots", "--skip-crds",
					"docs/how-to/install.md#2-the-crds-of-snapshots"}},
				cause: func(s *scene) {
					s.without("volumegroupsnapshotclass", "causeway-hostpath")
					s.later(func() { s.kubectl("apply", "--server-side", "-k", chart.Directory()+"/crds") })
					s.kubectl("delete", "crd", "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
						"volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io", "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io")
				}},
		}},
		{name: "before: filesystems", faults: []fault{
			{name: "a file in place of the directory",
				named: []want{{"node-root", "Node/node-1", "the path of the volumes is no directory", "remove the file", page}},
				cause: on(0, "rmdir "+directory+" && touch "+directory, "rm "+directory+" && mkdir "+directory)},
			{name: "a read-only filesystem in memory",
				named: []want{{"node-root", "Node/node-2", "the filesystem of the volumes is read-only", "mount it writable", pageNotReady},
					{"node-root", "Node/node-2", "not that of a disk", "mount a disk", page}},
				cause: on(1, "mount -t tmpfs -o ro none "+directory, "umount "+directory)},
			{name: "old CRDs",
				named: []want{{"crds", "CRDs of snapshot.storage.k8s.io", "the CRDs are too old", "upgrade the CRDs",
					"docs/how-to/install.md#2-the-crds-of-snapshots"}},
				cause: (*scene).oldCRDs},
			{name: "the root of the kubelet is elsewhere",
				named: []want{{"kubelet-root", "Node/node-1, Node/node-2", "the directory of the kubelet is not that of the chart",
					"set kubeletDir to /var/lib/kubelet", "docs/how-to/install.md#settings-with-conditions"}},
				cause: func(s *scene) {
					before := *s.args
					s.later(func() { *s.args = before })
					*s.args = append(append([]string(nil), before...), "--kubelet-dir=/var/lib/other")
				}},
		}},
		{name: "before: namespaces", faults: []fault{
			{name: "Pod Security",
				named: []want{{"namespace", "Namespace/second", "Pod Security does not permit", "label --overwrite namespace second",
					"docs/how-to/install.md#4-install"},
					{"dry-run", "Namespace/second", "Pod Security rejects", "label --overwrite namespace second", "docs/how-to/install.md#4-install"}},
				cause: func(s *scene) {
					label := []string{"label", "--overwrite", "namespace", second, "pod-security.kubernetes.io/enforce="}
					s.later(func() { s.kubectl(append(label[:4:4], label[4]+"privileged")...) })
					s.kubectl(append(label[:4:4], label[4]+"baseline")...)
				}},
			{name: "a node that is not ready",
				named: []want{{"node-state", "Node/node-2", "the node is not ready", "bring the node back", "docs/how-to/node-failures.md"}},
				cause: func(s *scene) {
					s.later(func() { s.must(nodes[1].Release("kubelet")) })
					s.must(nodes[1].Hold("kubelet"))
				}},
		}},
		{name: "before: policies", faults: []fault{
			{name: "a policy",
				named: []want{{"dry-run", "Namespace/second", "an admission policy rejects the pods", "in that policy",
					"docs/how-to/install.md#privileges"}},
				cause: func(s *scene) {
					s.later(func() {
						s.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "no-controllers")
					})
					s.apply(strings.NewReplacer("kubernetes.io/metadata.name: causeway", "kubernetes.io/metadata.name: second",
						"{app.kubernetes.io/name: causeway-controller}", "{}").Replace(policy))
				}},
		}},
		{name: "before: no namespace", faults: []fault{
			{name: "no namespace",
				named: []want{{"namespace", "Namespace/second", "the namespace does not exist", "kubectl create namespace second",
					"docs/how-to/install.md#4-install"}},
				cause: func(s *scene) {
					s.later(func() {
						s.kubectl("create", "namespace", second)
						s.kubectl("label", "namespace", second, "pod-security.kubernetes.io/enforce=privileged")
						await.NoError(s, "pods are let in", func() error { _, err := s.try("-n", second, "get", "serviceaccount", "default"); return err })
					})
					s.kubectl("delete", "namespace", second)
				}},
		}},
	}
	for i := range steps {
		steps[i].doctor, steps[i].begin = doctor, begin
	}
	return steps
}

// oldCRDs has the API server serve the kinds of snapshots in an old version only, until the repair.
func (s *scene) oldCRDs() {
	s.Helper()
	for _, name := range []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"} {
		s.patch("crd", name+".snapshot.storage.k8s.io", `[
			{"op":"replace","path":"/spec/versions/0/served","value":false},
			{"op":"replace","path":"/spec/versions/1/served","value":true}]`)
	}
}
