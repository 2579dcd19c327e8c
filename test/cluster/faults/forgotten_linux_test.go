package faults

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// immediate is a class whose claims are made before a pod wants them: for these all nodes are
// asked.
const immediate = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: immediate}
provisioner: hostpath.csi.causeway.dev
volumeBindingMode: Immediate
parameters: {kind: directory}
`

// A node burns: its volumes can be deleted after it is declared gone for good, and not before, and
// the others work. If it comes back after all, its volumes are orphans, and the steps of
// docs/how-to/orphans.md delete them.
func TestNodeGoneForGood(t *testing.T) {
	s := begin(t)
	lost, other := nodes[1], nodes[0]
	s.Cleanup(func() { s.forget("") })
	s.Cleanup(func() { s.kubectl("delete", "storageclass", "immediate", "--ignore-not-found") })
	s.apply(immediate, claim("lost", directories, "10Mi", ""),
		pod("lost", only(lost.Name), "echo lost >/lost/file; "+idle, "lost"),
		claim("stays", directories, "10Mi", ""), pod("stays", only(other.Name), "echo stays >/stays/file; "+idle,
			"stays"))
	s.runs("lost", "stays")
	s.same("the data", "lost", s.in("lost", "cat /lost/file"))
	s.apply(snapshot("of-lost", "lost"), snapshot("of-stays", "stays"))
	for _, name := range []string{"of-lost", "of-stays"} {
		s.until("snapshot "+name+" to be ready",
			func() error { return same("true", s.value("volumesnapshot/"+name, "{.status.readyToUse}")) })
	}
	handle, volume := s.handle("lost"), s.kubectl("get", "pvc", "lost", "-o", "jsonpath={.spec.volumeName}")
	content := s.kubectl("get", "volumesnapshot", "of-lost", "-o", "jsonpath={.status.boundVolumeSnapshotContentName}")
	cut := s.kubectl("get", "volumesnapshotcontent", content, "-o", "jsonpath={.status.snapshotHandle}")

	s.must(lost.PowerOff(s.Context()))
	s.kubectl("delete", "node", lost.Name)
	// As the garbage collector of pods does within a minute or two. DNS has no address of that node
	// any more then.
	for _, in := range []string{s.namespace, install.Namespace, "kube-system"} {
		s.kubectl("-n", in, "delete", "pods", "--field-selector=spec.nodeName="+lost.Name, "--force",
			"--grace-period=0")
	}
	s.kubectl("delete", "pvc/lost", "--wait=false")
	s.kubectl("delete", "volumesnapshot/of-lost", "--wait=false")
	s.says("PersistentVolume/"+volume, "code = Unavailable")
	s.same("the deleted claim's volume", "Released", s.value("pv/"+volume, "{.status.phase}"))
	s.same("the deleted snapshot's content", content, s.value("volumesnapshotcontent/"+content, "{.metadata.name}"))

	s.forget(lost.Name + "   # burnt")
	s.until("the lost volume to be deleted",
		func() error { return empty(s.try("get", "pv", volume, "--ignore-not-found")) })
	s.until("the lost snapshot to be deleted", func() error {
		return empty(s.try("get", "volumesnapshotcontent", content, "--ignore-not-found"))
	})
	s.apply(claim("restored", directories, "10Mi", "VolumeSnapshot/of-stays"), pod("restored", "", idle, "restored"),
		claim("asks-all", "immediate", "10Mi", ""), pod("asks-all", "", "echo all >/asks-all/file; "+idle, "asks-all"))
	s.runs("restored", "asks-all")
	s.same("what was restored meanwhile", "stays", s.in("restored", "cat /restored/file"))
	s.same("what was written meanwhile", "all", s.in("asks-all", "cat /asks-all/file"))

	s.forget("")
	s.must(lost.PowerOn(s.Context(), true))
	s.ready()
	s.same("the lost data, on its disk", "lost", s.on(lost, "cat "+disk(handle)+"/file"))
	s.orphans(3, handle, cut)
	s.remove(lost, handle, cut)
	s.until("both to be gone", func() error { return same("0 0", s.held(lost)) })
	s.orphans(0)
	s.same("data of the other node", "stays", s.in("stays", "cat /stays/file"))
}

// forget sets the nodes that are gone for good.
func (s *scene) forget(lines string) {
	s.Helper()
	s.kubectl("-n", install.Namespace, "patch", "configmap", "causeway-forgotten-nodes", "--type=merge", "-p",
		fmt.Sprintf(`{"data":{"nodes":%q}}`, lines+"\n"))
}

// orphans runs the command as docs/how-to/orphans.md describes, with less time in between, as
// nothing else is going on, and compares its exit code and the IDs that it tells.
func (s *scene) orphans(code int, ids ...string) {
	s.Helper()
	const line = `(sleep 4; kubectl get pv,volumesnapshotcontents,volumegroupsnapshotcontents -o json && echo complete) |
		kubectl -n ` + install.Namespace + ` exec -i deployment/causeway-controller -c driver -- /driver orphans --settle=1s --expect-no-groups`
	s.until(fmt.Sprintf("driver orphans to find %d", len(ids)), func() error {
		cmd := exec.CommandContext(s.anyhow(), "sh", "-c", line)
		cmd.Env = kube.Environment()
		out, _ := cmd.CombinedOutput()
		got := string(out)
		for _, id := range ids {
			if !strings.Contains(got, id) {
				return fmt.Errorf("%s is not in\n%s", id, got)
			}
		}
		if cmd.ProcessState.ExitCode() != code ||
			!strings.Contains(got, fmt.Sprintf("volumes: %d held, 3 named", 3+min(len(ids), 1))) {
			return fmt.Errorf("exit code %d:\n%s", cmd.ProcessState.ExitCode(), got)
		}
		return nil
	})
}

// remove gives an orphaned volume and its snapshot their objects back, as docs/how-to/orphans.md
// says, and deletes these.
func (s *scene) remove(n local.Node, volume, cut string) {
	s.Helper()
	s.apply(fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata:
  name: orphan-1
  annotations:
    pv.kubernetes.io/provisioned-by: hostpath.csi.causeway.dev
spec:
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  capacity: {storage: 10Mi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: %s, name: orphan-1}
  csi: {driver: hostpath.csi.causeway.dev, volumeHandle: %s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: hostpath.csi.causeway.dev/node, operator: In, values: [%s]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: orphan-1}
spec:
  storageClassName: ""
  volumeName: orphan-1
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 10Mi}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: orphan-2}
spec:
  deletionPolicy: Retain
  driver: hostpath.csi.causeway.dev
  source: {snapshotHandle: %s}
  volumeSnapshotRef: {namespace: %s, name: orphan-2}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: orphan-2}
spec:
  source: {volumeSnapshotContentName: orphan-2}
`, s.namespace, volume, n.Name, cut, s.namespace), pod("orphan-1", "", idle, "orphan-1"))
	s.runs("orphan-1")
	s.same("the orphan's data", "lost", s.in("orphan-1", "cat /orphan-1/file"))
	s.until("the orphaned snapshot to be ready",
		func() error { return same("true", s.value("volumesnapshot/orphan-2", "{.status.readyToUse}")) })
	s.kubectl("delete", "pod", "orphan-1")
	s.kubectl("patch", "pv", "orphan-1", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	s.kubectl("delete", "pvc", "orphan-1")
	s.kubectl("patch", "volumesnapshotcontent", "orphan-2", "--type=merge", "-p",
		`{"spec":{"deletionPolicy":"Delete"}}`)
	s.kubectl("delete", "volumesnapshot", "orphan-2")
}
