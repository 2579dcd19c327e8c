package outages

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/outages/records"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// migrate moves the volumes of a StatefulSet from csi-driver-smb by the script of
// docs/how-to/move-from-csi-driver-smb.md. The driver of the old volumes is Causeway's, under the
// name of csi-driver-smb.
func (s *scene) migrate() {
	s.installOld()
	var moved []*writer
	for i, n := range guests {
		w := &writer{name: fmt.Sprint("old-", i), claim: fmt.Sprint("data-old-", i), node: n, class: "static"}
		volume := fmt.Sprint("pvc-old-", i)
		dir := filepath.Join(shares.Directory(s.server), volume)
		s.must(os.Mkdir(dir, 0o777))
		s.must(os.Chmod(dir, 0o777))
		s.must(kube.Apply(s.anyhow(), fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s, annotations: {pv.kubernetes.io/provisioned-by: smb.csi.k8s.io}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Delete
  storageClassName: smb
  mountOptions: [dir_mode=0777, file_mode=0777, vers=3.0]
  claimRef: {namespace: %[2]s, name: %[3]s}
  csi:
    driver: smb.csi.k8s.io
    volumeHandle: "%[4]s#%[1]s#"
    volumeAttributes: {source: "%[4]s", subDir: %[1]s}
    nodeStageSecretRef: {name: %[5]s, namespace: %[6]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[3]s, namespace: %[2]s}
spec: {accessModes: [ReadWriteMany], storageClassName: smb, volumeName: %[1]s, resources: {requests: {storage: 1Gi}}}
`, volume, namespace, w.claim, s.server.Source(), shares.NodesSecret, install.Namespace)))
		moved = append(moved, w)
	}
	s.must(kube.Apply(s.anyhow(), fmt.Sprintf(`apiVersion: apps/v1
kind: StatefulSet
metadata: {name: old, namespace: %s}
spec:
  serviceName: old
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: old}}
  template:
    metadata: {labels: {app: old}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: old}}
      containers:
      - name: writer
        image: %s
        command: [/writer, /volume/records, /logs/$(POD)]
        env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        volumeMounts: [{name: data, mountPath: /volume}, {name: logs, mountPath: /logs}]
      volumes: [{name: logs, hostPath: {path: %s, type: DirectoryOrCreate}}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteMany], storageClassName: smb, resources: {requests: {storage: 1Gi}}}
`, namespace, image, logs)))
	inodes := map[string]uint64{}
	for _, w := range moved {
		s.awaitReady(w)
		s.verify(w, s.writes(w, time.Now()))
		inodes[w.claim] = s.inode(w)
	}
	s.kubectl("scale", "statefulset", "old", "--replicas=0")
	for _, w := range moved {
		s.kubectl("wait", "pod", w.name, "--for=delete", "--timeout="+livetest.Patience.String())
	}
	for i, w := range moved {
		interrupted := s.move(w, fmt.Sprint("pvc-old-", i))
		for _, call := range []string{"apply -f ", "patch pv ", "delete --raw /api/v1/namespaces/", "create -f ",
			"delete --raw /api/v1/persistentvolumes/"} {
			for _, when := range []string{"before ", "after "} {
				if !strings.Contains(interrupted, when+call) {
					s.Errorf("%s: the script was not interrupted %s%s, but:\n%s", w.claim, when, call, interrupted)
				}
			}
		}
		s.Logf("%s: the script was interrupted %d times", w.claim, strings.Count(interrupted, "\n"))
		driver := s.get("pv", s.get("pvc", w.claim, "{.spec.volumeName}"), "{.spec.csi.driver}")
		if driver != "smb.csi.causeway.dev" {
			s.Errorf("%s has a volume of the driver %s", w.claim, driver)
		}
	}
	s.kubectl("scale", "statefulset", "old", "--replicas=2")
	for _, w := range moved {
		s.awaitReady(w)
		s.verify(w, s.writes(w, time.Now()))
		if inode := s.inode(w); inode != inodes[w.claim] {
			s.Errorf("%s: the file is another one than before", w.claim)
		}
	}
	s.kubectl("delete", "statefulset", "old")
}

// installOld installs the nodes' part of the driver under the name of csi-driver-smb, beside the
// driver.
func (s *scene) installOld() {
	s.Helper()
	bin, err := chart.Programs(s.Context(), os.Stderr)
	s.must(err)
	objects, err := chart.Render(s.Context(), bin,
		"--values="+filepath.Join(chart.Sources(), "test", "cluster", "shares", "values.yaml"),
		"--set-string=images.tag=dev,fullnameOverride=old,smb.driverName=smb.csi.k8s.io,"+
			"smb.shares.private.source=//a/b,smb.storageClasses.causeway-smb.source=//a/b,"+
			"smb.storageClasses.causeway-smb-wait.source=//a/b")
	s.must(err)
	applied := 0
	for _, o := range objects {
		switch o.Source {
		case "smb/node.yaml", "smb/csidriver.yaml":
			text := o.Text
			for _, port := range []string{"9818", "9819", "9821"} { // those of the driver, on the same nodes
				text = strings.ReplaceAll(text, port, "1"+port)
			}
			s.must(kube.Apply(s.anyhow(), text, "--namespace="+install.Namespace))
			applied++
		}
	}
	if applied < 2 {
		s.Fatalf("%d objects of the old driver were applied", applied)
	}
	s.driver("rollout", "status", "daemonset/old-smb-node", "--timeout="+livetest.Patience.String())
}

// inode returns the inode of the records on the server's disk.
func (s *scene) inode(w *writer) uint64 {
	s.Helper()
	info, err := os.Stat(filepath.Join(s.directory(w), "records"))
	s.must(err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// killer is a kubectl that kills the script before and after each call, once. $KILLED has the
// calls.
const killer = `#!/bin/sh
once() {
	grep -qxF "$1" "$KILLED" && return
	echo "$1" >>"$KILLED"
	kill -9 $PPID
	exit 1
}
call=$(echo "$*" | tr '\n' ' ')
once "before $call"
"$KUBECTL" "$@"
code=$?
once "after $call"
exit $code
`

// move runs the script for a volume until it succeeds. The script is killed before and after each
// of its calls of kubectl. move returns these calls, in lines.
func (s *scene) move(w *writer, volume string) (interrupted string) {
	s.Helper()
	dir := s.TempDir()
	killed := filepath.Join(dir, "killed")
	s.must(os.WriteFile(filepath.Join(dir, "kubectl"), []byte(killer), 0o755))
	s.must(os.WriteFile(killed, nil, 0o644))
	program := kube.Command(s.anyhow()).Path
	script := filepath.Join(chart.Sources(), "hack", "move-from-csi-driver-smb")
	last := records.Last(s.events(w))
	for range 100 {
		cmd := exec.CommandContext(s.anyhow(), script, "--apply", volume, filepath.Join(dir, "objects"))
		cmd.Env = append(kube.Environment(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECTL="+program, "KILLED="+killed)
		out, err := cmd.CombinedOutput()
		calls, readErr := os.ReadFile(killed)
		s.must(readErr)
		content, readErr := os.ReadFile(filepath.Join(shares.Directory(s.server), volume, "records"))
		if err := errors.Join(readErr, records.Check(content, last)); err != nil {
			s.Fatalf("%s, after the calls\n%s: %v", volume, calls, err)
		}
		if err == nil {
			return string(calls)
		}
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
			s.Fatalf("the script failed: %v: %s", err, out)
		}
	}
	s.Fatal("the script does not end")
	return ""
}
