package faults

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// The classes that the manifests have.
const (
	directories = "causeway-hostpath"
	images      = "causeway-hostpath-image"
)

// claim returns a claim, empty or, if there is a source such as "VolumeSnapshot/name", a copy.
func claim(name, class, size, source string) string {
	if kind, from, ok := strings.Cut(source, "/"); ok {
		group := ""
		if kind == "VolumeSnapshot" {
			group = "apiGroup: snapshot.storage.k8s.io, "
		}
		source = fmt.Sprintf("\n  dataSource: {%skind: %s, name: %s}", group, kind, from)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  resources: {requests: {storage: %s}}%s
`, name, class, size, source)
}

func snapshot(name, of string) string {
	return fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec:
  volumeSnapshotClassName: causeway-hostpath
  source: {persistentVolumeClaimName: %s}
`, name, of)
}

// idle is a command that does nothing, and ends when it is told to.
const idle = "trap exit TERM; while :; do sleep 1 & wait $!; done"

// pod returns a pod that runs a line of shell and has each claim mounted at /<claim>. where is more
// of its spec, such as only(node).
func pod(name, where, line string, claims ...string) string {
	var mounts, volumes []string
	for _, c := range claims {
		mounts = append(mounts, fmt.Sprintf("{name: %s, mountPath: /%s}", c, c))
		volumes = append(volumes, fmt.Sprintf("{name: %s, persistentVolumeClaim: {claimName: %s}}", c, c))
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: it
    image: %s
    command: [sh, -c, %q]
    volumeMounts: [%s]
  volumes: [%s]
`, name, where, testimages.Busybox, line, strings.Join(mounts, ", "), strings.Join(volumes, ", "))
}

// only requires a node for a pod.
func only(node string) string { return "  nodeSelector: {kubernetes.io/hostname: " + node + "}" }

// forGood keeps a pod from being evicted from a node that has been silent for five minutes, as
// others are.
const forGood = "  tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}]"

// rather prefers a node for a pod.
func rather(node string) string {
	return "  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: " +
		"{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [" + node + "]}]}}]}}"
}

// writes is a command that appends the next number to the file log of each directory, in a loop,
// and ends with an error if it cannot. It continues after the last number of the command before.
func writes(dirs ...string) string {
	return "trap 'exit 0' TERM; while :; do for d in " + strings.Join(dirs, " ") + "; do " +
		"echo $(($(cat $d/log 2>/dev/null | wc -l) + 1)) >>$d/log || exit 1; done; sleep 0.2; done"
}

// length prints the count of numbers in such a log, and nothing if a number is missing.
const length = `awk '$0 != NR {exit bad = 1} END {if (!bad) print NR}' `
