package faults

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/internal/doctortest"
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
		s.until("snapshot "+name+" is ready",
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
	s.until("the lost volume is deleted",
		func() error { return empty(s.try("get", "pv", volume, "--ignore-not-found")) })
	s.until("the lost snapshot is deleted", func() error {
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
	s.remove(handle, cut)
	s.until("both are gone", func() error { return same("0 0", s.held(lost)) })
	s.orphans(0)
	s.same("data of the other node", "stays", s.in("stays", "cat /stays/file"))
}

// forget sets the nodes that are gone for good.
func (s *scene) forget(lines string) {
	s.Helper()
	s.kubectl("-n", install.Namespace, "patch", "configmap", "causeway-forgotten-nodes", "--type=merge", "-p",
		fmt.Sprintf(`{"data":{"nodes":%q}}`, lines+"\n"))
}

// plugin runs kubectl causeway, and returns its output and its exit code.
func (s *scene) plugin(args ...string) (string, int) {
	s.Helper()
	if s.program == "" {
		s.program = doctortest.BuildPlugin(s.T)
	}
	cmd := exec.CommandContext(s.anyhow(), s.program, args...)
	cmd.Env = kube.Environment()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// orphans runs the command as docs/how-to/orphans.md describes, with less time in between, as
// nothing else is going on, and compares its exit code and the IDs that it tells.
func (s *scene) orphans(code int, ids ...string) {
	s.Helper()
	s.until(fmt.Sprintf("kubectl causeway orphans finds %d", len(ids)), func() error {
		got, exit := s.plugin("orphans", "--driver=hostpath.csi.causeway.dev", "--settle=1s", "--expect-no-groups")
		for _, id := range ids {
			if !strings.Contains(got, id) {
				return fmt.Errorf("%s is not in\n%s", id, got)
			}
		}
		if exit != code || !strings.Contains(got, fmt.Sprintf("volumes: %d held, 3 named", 3+min(len(ids), 1))) {
			return fmt.Errorf("exit code %d:\n%s", exit, got)
		}
		return nil
	})
}

// remove deletes the orphans, as docs/how-to/orphans.md describes.
func (s *scene) remove(ids ...string) {
	s.Helper()
	got, exit := s.plugin("orphans", "--driver=hostpath.csi.causeway.dev", "--settle=1s", "--expect-no-groups", "--delete", "--yes")
	for _, id := range ids {
		if exit != 0 || !strings.Contains(got, id+" deleted") {
			s.Fatalf("exit code %d, want %s deleted:\n%s", exit, id, got)
		}
	}
}
