package live

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/testimages"
)

// Pages of the findings.
const (
	pageTrouble  = "docs/how-to/troubleshooting.md"
	pagePending  = pageTrouble + "#a-claim-stays-pending"
	pagePodStart = pageTrouble + "#a-pod-does-not-start"
	pagePodEnd   = pageTrouble + "#a-pod-does-not-end"
	pageSnapshot = pageTrouble + "#a-snapshot-or-a-clone-fails"
	pageChange   = pageTrouble + "#a-volume-does-not-grow-or-change"
	pageDelete   = pageTrouble + "#a-volume-or-a-snapshot-is-not-deleted"
	pageVolume   = pageTrouble + "#conditions-of-a-volume"
	pageStorage  = pageTrouble + "#conditions-of-the-storage"
	pageNotReady = pageTrouble + "#the-driver-is-not-ready"
	pageRouter   = pageTrouble + "#errors-of-the-router"
	pageCerts    = "docs/how-to/certificates.md#errors-of-certificates"
)

// claimSteps are faults of claims, pods, snapshots and deletions.
func claimSteps() []step {
	const neverEnds = "a pod with a volume does not end"
	return []step{{name: "claims", begin: (*scene).retriesLater, faults: []fault{
		{name: "an unknown parameter",
			rows: []string{"A claim stays Pending: INVALID_ARGUMENT"},
			named: []want{{"claims", "PersistentVolumeClaim/default/parameter", "a parameter", "delete the class and make it again",
				pagePending}},
			cause: func(s *scene) {
				s.claimOf(class("parameter", driverName, "Immediate", "knid: directory"), "parameter", "1Mi")
			}},
		{name: "no room on any node",
			rows:  []string{"A claim stays Pending: RESOURCE_EXHAUSTED"},
			named: []want{{"claims", "PersistentVolumeClaim/default/huge", "has room", "free space", pagePending}},
			cause: func(s *scene) {
				s.claimOf(class("huge", driverName, "Immediate", "kind: directory"), "huge", "100Gi")
			}},
		{name: "no room for a pod",
			rows: []string{"A claim stays Pending: no code, `node(s) did not have enough free storage` at the pod, and " +
				"`waiting for pod … to be scheduled` at the claim"},
			named: []want{{"pods-with-volumes", "Pod/default/unschedulable", "no node has space for the volume", "free space",
				pagePending}},
			cause: func(s *scene) { s.start("unschedulable", "causeway-hostpath", "100Gi", "") }},
		{name: "a pod that may not run on the node of its volume",
			rows: []string{"A pod does not start: no code, `node(s) didn't match PersistentVolume's node affinity`"},
			named: []want{{"pods-with-volumes", "Pod/default/elsewhere", "they are on another node", "permit the pod to run",
				pagePodStart}},
			cause: func(s *scene) {
				s.use(volumeOf{name: "elsewhere", without: true})
				s.apply(pod("elsewhere", nodes[1].Name, "elsewhere"))
			}},
		{name: "a topology of no node", rows: []string{"Errors of the router: `none of the N nodes is in …`"},
			named: []want{{"claims", "PersistentVolumeClaim/default/nowhere", "the node that the claim names has no driver",
				"allowedTopologies", pageRouter}},
			cause: func(s *scene) {
				s.claimOf(class("nowhere", driverName, "Immediate", "kind: directory", only("node-99")), "nowhere", "1Mi")
			}},
		{name: "a topology of a forgotten node",
			rows: []string{"A claim stays Pending: RESOURCE_EXHAUSTED, `none of the N nodes is in any topology that the volume may have`",
				"Errors of the router: `none of the N nodes is in any topology that the volume may have`"},
			named: []want{{"claims", "PersistentVolumeClaim/default/forgotten", "the topology of the claim", "allowedTopologies",
				pagePending}},
			also: []want{{check: "claims", object: "default/forgotten", cause: "has no driver"}}, // until the kubelet has the list
			cause: func(s *scene) {
				s.edit("configmap", "causeway-forgotten-nodes", `"nodes":"`, `"nodes":"node-98\n`)
				s.claimOf(class("forgotten", driverName, "Immediate", "kind: directory", only("node-98")), "forgotten", "1Mi")
			}},
		{name: "a size that no node has",
			rows:  []string{"A volume does not grow or change: OUT_OF_RANGE, `insufficient capacity`, `no space left on device`"},
			named: []want{{"expansions", "PersistentVolumeClaim/default/grows", "does not grow", "smaller size", pageChange}},
			cause: func(s *scene) {
				s.use(volumeOf{name: "grows"})
				s.kubectl("patch", "pvc", "grows", "--type=merge", "-p",
					`{"spec":{"resources":{"requests":{"storage":"100Gi"}}}}`)
			}},
		{name: "a class of attributes of the other kind",
			rows: []string{"A volume does not grow or change: INVALID_ARGUMENT, of a VolumeAttributesClass"},
			named: []want{{"modifications", "PersistentVolumeClaim/default/changes", "does not get its VolumeAttributesClass",
				"make another VolumeAttributesClass", pageChange}},
			cause: func(s *scene) {
				s.later(func() { s.kubectl("delete", "volumeattributesclass", "wrong") })
				s.apply("apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {name: wrong}\n" +
					"driverName: " + driverName + "\nparameters: {discard: \"yes\"}\n")
				s.use(volumeOf{name: "changes"})
				s.kubectl("patch", "pvc", "changes", "--type=merge", "-p",
					`{"spec":{"volumeAttributesClassName":"wrong"}}`)
			}},
		{name: "a file with a lease",
			rows: []string{"A snapshot or a clone fails: FAILED_PRECONDITION, `holds a lease`, `too deep`, `are being moved`",
				"Conditions of a volume: `CopyFailed`"},
			lasting: []string{"CausewayCopiesFail"},
			named: []want{{"snapshots", "VolumeSnapshotContent/snapcontent-", "the content of the volume cannot be copied",
				"the message names the entry", "docs/explanation/snapshots.md#consistency-of-a-copy"},
				{"volume-health", "PersistentVolumeClaim/default/leased", "CopyFailed: the last snapshot or clone failed because of the volume's content",
					"names the entry", pageVolume}},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "leased"})
				s.keep(nodes[0], "python3", "-c", "import fcntl,os,signal,time; "+
					"[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGIO, signal.SIGTERM)]; "+
					"f = os.open('"+data(id)+"/marker-leased', os.O_RDWR)\n"+
					"while True:\n"+ // after /proc/sys/fs/lease-break-time the kernel takes the lease
					"  try: fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"+
					"  except OSError: pass\n"+
					"  time.sleep(0.1)")
				for i := range 3 {
					s.snapshot(fmt.Sprintf("leased-%d", i), "leased")
				}
			}},
		{name: "an obstructed path",
			rows: []string{"A pod does not start: FAILED_PRECONDITION, `the path of the data is obstructed`"},
			named: []want{{"pods-with-volumes", "Pod/default/obstructed", "the path of the data is obstructed",
				"remove the obstacle", pagePodStart}},
			also: []want{{check: "volume-health", object: "default/obstructed", cause: "DataMissing"}},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "obstructed", without: true})
				s.swap(data(id), "mkfifo "+data(id))
				s.apply(pod("obstructed", nodes[0].Name, "obstructed"))
			}},
		{name: "an image without a filesystem", lasting: []string{"CausewayInternalErrors"},
			rows: []string{"A pod does not start: INTERNAL, `not the filesystem expected`",
				"Conditions of a volume: `FilesystemUnmountable`"},
			named: []want{{"pods-with-volumes", "Pod/default/zeros", "no filesystem that can be mounted", "e2fsck",
				pagePodStart}, sick("zeros", "no filesystem in the image", "e2fsck")},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "zeros", class: "causeway-hostpath-image", size: "20Mi", without: true})
				s.on(nodes[0], "dd if=/dev/zero of="+volume(id)+"/image.raw bs=1M count=4 conv=notrunc 2>&1")
				s.apply(pod("zeros", nodes[0].Name, "zeros"))
			}},
		{name: "a volume that is mounted elsewhere",
			rows: []string{"A volume or a snapshot is not deleted: FAILED_PRECONDITION"},
			named: []want{{"deletes", "PersistentVolume/pvc-", "the volume is in use on its node", "end the pods",
				pageDelete}},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "held", without: true})
				held := "/var/lib/kubelet/held"
				s.later(func() { s.on(nodes[0], "umount "+held+"; rmdir "+held) })
				s.on(nodes[0], "mkdir -p "+held+" && mount --bind "+data(id)+" "+held)
				s.kubectl("delete", "pvc", "held", "--wait=false")
			}},
	}}, {name: "pods that do not end", faults: []fault{
		{name: "a mount in a target",
			rows:  []string{"A pod does not end: FAILED_PRECONDITION"},
			named: []want{{"pods-that-end", "Pod/default/inside", neverEnds, "see the log of the driver", pagePodEnd}},
			cause: func(s *scene) {
				s.use(volumeOf{name: "inside"})
				inside := s.target("inside") + "/inside"
				s.later(func() { s.on(nodes[0], "umount "+inside) })
				s.on(nodes[0], "mkdir "+inside+" && mount -t tmpfs none "+inside)
				s.kubectl("delete", "pod", "inside", "--wait=false")
			}},
		{name: "a file instead of a target",
			rows:  []string{"A pod does not end: INVALID_ARGUMENT, `this driver has not made the file`"},
			named: []want{{"pods-that-end", "Pod/default/unmarked", neverEnds, "see the log of the driver", pagePodEnd}},
			cause: func(s *scene) {
				s.use(volumeOf{name: "unmarked", node: &nodes[1]})
				target := s.target("unmarked")
				s.later(func() { s.on(nodes[1], "rm "+target) })
				s.on(nodes[1], "umount "+target+" && rmdir "+target+" && touch "+target)
				s.kubectl("delete", "pod", "unmarked", "--wait=false")
			}},
		{name: "a driver with few files",
			rows:  []string{"Errors of any call: UNAVAILABLE, `too many open files`, `cannot allocate memory`"},
			named: []want{{"claims", "PersistentVolumeClaim/default/few", "too few files", "raise the limit", pageTrouble + "#errors-of-any-call"}},
			also: []want{{check: "driver-ready", object: "on node-1"}, // the kubelet restarts it
				{"claims", "PersistentVolumeClaim/default/few", "a node that the call needs is away", "", ""}},
			cause: func(s *scene) {
				const find = "p=$(pgrep -f '^/usr/bin/driver --mode=node'); "
				s.later(func() { s.on(nodes[0], find+"prlimit --pid $p --nofile=1024:") })
				s.on(nodes[0], find+"n=0; while [ -e /proc/$p/fd/$n ]; do n=$((n+1)); done; prlimit --pid $p --nofile=$n:")
				s.claimOf(class("few", driverName, "Immediate", "kind: directory", only(nodes[0].Name)), "few", "1Mi")
			}},
	}}}
}

// target returns the path at which a claim is mounted for its pod.
func (s *scene) target(claim string) string {
	s.Helper()
	uid := s.kubectl("get", "pod", claim, "-o", "jsonpath={.metadata.uid}")
	return "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/" +
		s.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}") + "/mount"
}

// only returns the line of a class for volumes on one node.
func only(node string) string {
	return "allowedTopologies: [{matchLabelExpressions: [{key: hostpath.csi.causeway.dev/node, values: [" + node + "]}]}]"
}

// Paths of a volume on its node.
func volume(id string) string { return root + "/volumes/" + id }
func data(id string) string   { return volume(id) + "/data" }

// retriesLater has the sidecars repeat their calls at once after the repair: their pauses have
// grown.
func (s *scene) retriesLater() {
	s.later(func() { s.kubectl("-n", install.Namespace, "delete", "pod", "-l", controllerPod) })
}

// claimOf makes a claim of a class, and the class.
func (s *scene) claimOf(class, name, size string) {
	s.Helper()
	s.later(func() {
		s.kubectl("delete", "pvc", name, "--ignore-not-found", "--wait=false")
		s.kubectl("delete", "storageclass", name)
	})
	s.apply(class, claim(name, name, size))
}

func claim(name, class, size string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  resources: {requests: {storage: %s}}
`, name, class, size)
}

// pod returns a pod that has claims at /CLAIM. With an empty node it can be on any node.
func pod(name, node string, claims ...string) string {
	var mounts, volumes []string
	for _, c := range claims {
		mounts = append(mounts, fmt.Sprintf("{name: %s, mountPath: /%s}", c, c))
		volumes = append(volumes, fmt.Sprintf("{name: %s, persistentVolumeClaim: {claimName: %s}}", c, c))
	}
	selector := "{}"
	if node != "" {
		selector = "{kubernetes.io/hostname: " + node + "}"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: %[2]s
  tolerations: [{operator: Exists}]
  containers:
  - name: writer
    image: %[3]s
    command: [sh, -c, "for c in %[4]s; do echo data >/$c/marker-$c; done; trap exit TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [%[5]s]
  volumes: [%[6]s]
`, name, selector, testimages.Busybox, strings.Join(claims, " "), strings.Join(mounts, ", "), strings.Join(volumes, ", "))
}

// start makes a claim and its pod, which do not have to start.
func (s *scene) start(name, class, size, node string) {
	s.Helper()
	s.later(func() {
		s.kubectl("delete", "pod", name, "--now", "--ignore-not-found")
		s.kubectl("delete", "pvc", name, "--ignore-not-found", "--wait=false")
	})
	s.apply(claim(name, class, size), pod(name, node, name))
}

// volumeOf describes a volume of use.
type volumeOf struct {
	name, class, size string
	node              *local.Node // the first node if nil
	without           bool        // delete the pod
}

// use makes a claim, whose pod writes a file, and returns the ID of the volume.
func (s *scene) use(v volumeOf) (id string) {
	s.Helper()
	if v.class == "" {
		v.class = "causeway-hostpath"
	}
	if v.size == "" {
		v.size = "1Mi"
	}
	if v.node == nil {
		v.node = &nodes[0]
	}
	s.start(v.name, v.class, v.size, v.node.Name)
	await.NoError(s, "pod "+v.name+" is ready", func() error {
		_, err := s.try("wait", "pod/"+v.name, "--for=condition=Ready", "--timeout=10s")
		return err
	})
	if v.without {
		s.kubectl("delete", "pod", v.name, "--now")
	}
	name := s.kubectl("get", "pvc", v.name, "-o", "jsonpath={.spec.volumeName}")
	return s.kubectl("get", "pv", name, "-o", "jsonpath={.spec.csi.volumeHandle}")
}

// swap moves a path of the first node away until the repair, and runs a command.
func (s *scene) swap(path, command string) {
	s.Helper()
	s.later(func() { s.on(nodes[0], "rm -rf "+path+" && mv "+away(path)+" "+path) })
	s.on(nodes[0], "mv "+path+" "+away(path)+" && "+command)
}

// keep runs a program on a node until the repair.
func (s *scene) keep(n local.Node, argv ...string) {
	s.Helper()
	cmd, err := n.Command(s.anyhow(), argv...)
	s.must(err)
	s.must(cmd.Start())
	s.later(func() {
		s.must(cmd.Cancel())
		cmd.Wait()
	})
}

func (s *scene) snapshot(name, of string) {
	s.Helper()
	s.later(func() { s.kubectl("delete", "volumesnapshot", name, "--wait=false", "--ignore-not-found") })
	s.apply(snapshotOf(name, of))
}

func snapshotOf(name, of string) string {
	return fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec:
  volumeSnapshotClassName: causeway-hostpath
  source: {persistentVolumeClaimName: %s}
`, name, of)
}
