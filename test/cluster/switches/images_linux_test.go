package switches

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
)

// TestReleaseForImages: the second release of the page serves images beside the first release, with
// seLinuxMount in its CSIDriver. It rejects a class for directories. The kernel of these nodes has
// no SELinux, so the kubelet passes no label.
func TestReleaseForImages(t *testing.T) {
	s := begin(t)
	const release, driver = "images", "hostpath-images.csi.causeway.dev"
	// The root of a local node is in memory, which is too small.
	const root = "/var/lib/cni/causeway-images"
	for _, n := range nodes {
		s.on(n, "mkdir -p "+root)
	}
	s.kubectl("label", "namespace", s.namespace, "pod-security.kubernetes.io/enforce=privileged")
	values := filepath.Join(t.TempDir(), "values.yaml")
	s.must(os.WriteFile(values, []byte(s.shown("kubernetes-features.md", "kinds: [image]")), 0o600))
	h, err := install.NewHelm(s.Context(), os.Stderr, kube)
	s.must(err)
	s.Cleanup(func() {
		s.kubectl("delete", "pods,pvc", "--all")
		await.NoError(s, "the volumes are deleted", func() error {
			return same("", s.value("pv", `{.items[?(@.spec.csi.driver=="`+driver+`")].metadata.name}`))
		})
		_, err := h.Run(s.anyhow(), "--namespace="+s.namespace, "uninstall", release, "--wait")
		s.must(err)
		for _, n := range nodes {
			s.on(n, "rm -r "+root)
		}
	})
	_, err = h.Run(s.Context(), "--namespace="+s.namespace, "install", release, chart.Directory(), "--skip-crds", "--wait",
		"--timeout=180s", "--values="+values, "--set=images.tag=dev,hostpath.root="+root)
	s.must(err)
	s.same("the field of the second release", "true", s.value("csidriver/"+driver, "{.spec.seLinuxMount}"))
	s.same("the field of the first release", "false", s.value("csidriver/hostpath.csi.causeway.dev", "{.spec.seLinuxMount}"))

	s.apply(claim("data", "causeway-images", "400Mi", ""), pod("data", "", "data"))
	s.runs("data")
	s.same("the driver of the volume", driver, s.value("pv/"+s.value("pvc/data", "{.spec.volumeName}"), "{.spec.csi.driver}"))
	s.must(contains(s.in("data", "grep ' /data ' /proc/mounts"), " xfs "))

	const class = "directories-of-images"
	s.Cleanup(func() { s.kubectl("delete", "storageclass", class, "--ignore-not-found") })
	s.apply("apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: " + class + "}\nprovisioner: " + driver +
		"\nparameters: {kind: directory}\n")
	s.apply(claim("directory", class, "10Mi", ""))
	await.NoError(s, "a directory is rejected", func() error {
		return contains(s.kubectl("get", "events", "--field-selector=involvedObject.name=directory"),
			`this driver makes only volumes of kind`)
	})
}
