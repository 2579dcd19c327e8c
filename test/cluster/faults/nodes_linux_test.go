package faults

import (
	"fmt"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// disk returns where a directory's data is on its node's disk.
func disk(handle string) string { return local.StorageDir + "/volumes/" + handle + "/data" }

// A node is cut off, with both pods of the controller: its pods continue to write, no pod is sent
// there, deletes wait for it, and other nodes do not wait.
func TestNodeCutOff(t *testing.T) {
	s := begin(t)
	away, other := nodes[0], nodes[1]
	s.apply(claim("data", directories, "10Mi", ""), claim("unused", directories, "10Mi", ""),
		pod("writer", only(away.Name)+"\n"+forGood, writes("/data"), "data"), pod("first", only(away.Name), idle,
			"unused"))
	s.runs("writer", "first")
	s.kubectl("delete", "pod", "first")
	was, data, unused := s.identity("writer"), s.handle("data"), s.handle("unused")
	volume := s.kubectl("get", "pvc", "unused", "-o", "jsonpath={.spec.volumeName}")

	s.kubectl("cordon", other.Name)
	s.kubectl("-n", install.Namespace, "delete", "pods", "-l", "app.kubernetes.io/name=causeway-controller")
	s.ready()
	s.kubectl("uncordon", other.Name)
	s.must(away.Cut(s.Context()))
	s.kubectl("delete", "pvc", "unused")
	s.apply(claim("elsewhere", images, "20Mi", ""),
		pod("elsewhere", only(other.Name), "echo elsewhere >/elsewhere/name; "+idle, "elsewhere"))
	s.runs("elsewhere")
	s.same("what was written meanwhile", "elsewhere", s.in("elsewhere", "cat /elsewhere/name"))
	s.advances(func() (string, error) { return s.shell(away, length+disk(data)+"/log") })
	s.says("PersistentVolume/"+volume, "code = Unavailable")
	s.until("there is no room on "+away.Name, func() error { return same("0 0", s.room(away)) })
	s.apply(claim("anywhere", directories, "10Mi", ""), pod("anywhere", rather(away.Name), idle, "anywhere"))
	s.runs("anywhere")
	s.same("the node of a pod that would like to be on "+away.Name, other.Name, s.nodeOf("anywhere").Name)
	s.same("the volume that was deleted meanwhile", "Released", s.value("pv/"+volume, "{.status.phase}"))
	s.on(away, "ls -d "+disk(unused))

	s.must(away.Reconnect(s.Context()))
	s.until("the deleted volume is gone",
		func() error { return empty(s.try("get", "pv", volume, "--ignore-not-found")) })
	if out, err := s.shell(away, "ls -d "+disk(unused)); err == nil {
		s.Errorf("its PersistentVolume is gone, and %s is there", out)
	}
	s.until("there is room on "+away.Name, func() error {
		if room := s.room(away); strings.HasPrefix(room, "0") {
			return fmt.Errorf("%q", room)
		}
		return nil
	})
	s.goesOn("writer", "/data")
	s.same("the writer's container and restarts", was, s.identity("writer"))
}

// room returns the scheduler's capacity of a node for each class.
func (s *scene) room(n local.Node) string {
	s.Helper()
	return s.kubectl("-n", install.Namespace, "get", "csistoragecapacities", "-o",
		`jsonpath={.items[?(@.nodeTopology.matchLabels.hostpath\.csi\.causeway\.dev/node=="`+n.Name+`")].capacity}`)
}

// A copy is where its source is, wherever the scheduler has first sent its pod.
func TestACloneIsCreatedOnTheNodeOfItsSource(t *testing.T) {
	s := begin(t)
	right, wrong := nodes[0], nodes[1]
	s.apply(claim("source", images, "20Mi", ""),
		pod("source", only(right.Name), "echo data >/source/file; "+idle, "source"))
	s.runs("source")
	s.in("source", "cat /source/file && sync")
	s.apply(snapshot("snapshot", "source"))
	s.until("the snapshot is ready",
		func() error { return same("true", s.value("volumesnapshot/snapshot", "{.status.readyToUse}")) })
	s.apply(claim("restored", images, "20Mi", "VolumeSnapshot/snapshot"),
		pod("restored", rather(wrong.Name), idle, "restored"),
		claim("clone", images, "20Mi", "PersistentVolumeClaim/source"), pod("clone", rather(wrong.Name), idle, "clone"))
	s.runs("restored", "clone")
	for _, copied := range []string{"restored", "clone"} {
		s.same("the node that "+copied+" was first sent to", wrong.Name,
			s.value("pvc/"+copied, `{.metadata.annotations.volume\.kubernetes\.io/selected-node}`))
		s.same("the node of "+copied, right.Name, s.nodeOf(copied).Name)
		s.same("the data of "+copied, "data", s.in(copied, "cat /"+copied+"/file"))
	}
	s.same("volumes and snapshots on "+wrong.Name, "0 0", s.held(wrong))
}

// A pod whose node is full goes to another, and a claim that exceeds the capacity of every node
// waits, and says why.
func TestFullNode(t *testing.T) {
	s := begin(t)
	full, other := nodes[0], nodes[1]
	filler := local.StorageDir + "/filler"
	s.Cleanup(func() { s.on(full, "rm -f "+filler) })
	s.on(full, "fallocate -l $(($(df --output=avail -B1 "+local.StorageDir+" | tail -1) - (100 << 20))) "+filler)
	s.apply(claim("data", directories, "500Mi", ""),
		pod("pod", rather(full.Name), "echo data >/data/file; "+idle, "data"))
	s.runs("pod")
	s.same("the pod's node", other.Name, s.nodeOf("pod").Name)
	s.same("its data", "data", s.in("pod", "cat /data/file"))
	s.same("volumes and snapshots on the full node", "0 0", s.held(full))
	s.Logf("what the claim was told: %s",
		s.kubectl("get", "events", "--field-selector=involvedObject.name=data", "-o", "jsonpath={.items[*].message}"))

	s.apply(claim("huge", directories, "20Gi", ""), pod("huge", "", idle, "huge"))
	s.says("Pod/huge", "did not have enough free storage")
	s.same("the huge claim", "Pending", s.value("pvc/huge", "{.status.phase}"))
	s.same("volumes and snapshots on the other node", "1 0", s.held(other))
}

// A node's programs are killed, and then the node is restarted: pods write on in the first case,
// and again after the second.
func TestNodeRestarted(t *testing.T) {
	s := begin(t)
	n := nodes[0]
	s.apply(claim("directory", directories, "10Mi", ""), claim("image", images, "20Mi", ""),
		pod("writer", only(n.Name), writes("/directory", "/image"), "directory", "image"))
	s.runs("writer")
	was := s.identity("writer")
	for _, program := range []string{"kubelet", "containerd"} {
		s.must(n.Hold(program))
	}
	s.advances(func() (string, error) { return s.shell(n, length+disk(s.handle("directory"))+"/log") })
	for _, program := range []string{"containerd", "kubelet"} {
		s.must(n.Release(program))
	}
	s.goesOn("writer", "/directory", "/image")
	s.same("the writer's container and restarts", was, s.identity("writer"))

	s.must(n.PowerOff(s.Context()))
	s.must(n.PowerOn(s.Context(), true))
	s.until("the writer is restarted", func() error {
		if now := s.identity("writer"); now == was || strings.HasPrefix(now, " ") {
			return fmt.Errorf("%q", now)
		}
		return nil
	})
	s.goesOn("writer", "/directory", "/image")
}

// A node comes back without its data disk: an empty directory is not taken for it. Nothing is
// deleted, and no pod starts.
func TestNodeWithoutItsDisk(t *testing.T) {
	s := begin(t)
	n := nodes[0]
	s.apply(claim("data", directories, "10Mi", ""), claim("image", images, "20Mi", ""),
		claim("unused", directories, "10Mi", ""),
		pod("writer", only(n.Name), writes("/data", "/image"), "data", "image"), pod("first", only(n.Name), idle,
			"unused"))
	s.runs("writer", "first")
	s.goesOn("writer", "/data", "/image")
	s.kubectl("delete", "pod", "first")
	unused := s.handle("unused")
	volume := s.kubectl("get", "pvc", "unused", "-o", "jsonpath={.spec.volumeName}")
	was := s.identity("writer")

	s.must(n.PowerOff(s.Context()))
	s.must(n.PowerOn(s.Context(), false))
	const reason = "was served here: is its disk mounted?"
	s.until("the driver reports why it is not ready", func() error {
		log, err := s.try("-n", install.Namespace, "logs", s.driverPod(n), "-c", "driver")
		if err == nil && !strings.Contains(log, reason) {
			err = fmt.Errorf("its log:\n%s", log)
		}
		return err
	})
	s.until("Probe reports that", func() error {
		out, err := s.shell(n, "curl -sS http://"+s.kubectl("-n", install.Namespace, "get", "pod", s.driverPod(n), "-o",
			"jsonpath={.status.podIP}")+":9808/healthz")
		if err == nil && (!strings.Contains(out, "FailedPrecondition") || !strings.Contains(out, reason)) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	s.until("the driver's pod is not ready", func() error {
		return same("False", s.kubectl("-n", install.Namespace, "get", "pod", s.driverPod(n), "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`))
	})
	s.kubectl("delete", "pvc", "unused")
	s.says("PersistentVolume/"+volume, reason)
	s.says("Pod/writer", reason)
	s.same("the deleted claim's volume", "Released", s.value("pv/"+volume, "{.status.phase}"))
	s.same("the writer's container and restarts", was, s.identity("writer"))
	s.same("what is where the disk is not mounted", "", s.on(n, "ls -A "+local.StorageDir))

	s.must(n.PowerOff(s.Context()))
	s.must(n.PowerOn(s.Context(), true))
	s.until("the deleted volume is gone",
		func() error { return empty(s.try("get", "pv", volume, "--ignore-not-found")) })
	if out, err := s.shell(n, "ls -d "+disk(unused)); err == nil {
		s.Errorf("its PersistentVolume is gone, and %s is there", out)
	}
	s.until("the writer is restarted", func() error {
		if now := s.identity("writer"); now == was || strings.HasPrefix(now, " ") {
			return fmt.Errorf("%q", now)
		}
		return nil
	})
	s.goesOn("writer", "/data", "/image")
}
