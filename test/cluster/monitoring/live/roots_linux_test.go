package live

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

const state = "/var/lib/kubelet/plugins/" + driverName + ".state"

// notReady returns the finding of a driver that is not ready, on a node.
func notReady(n int, cause, remedy string) want {
	return want{"driver-ready", "on " + [...]string{"node-1", "node-2"}[n], cause, remedy, pageNotReady}
}

// whileNotReady are findings beside notReady.
func whileNotReady() []want {
	return []want{restarting, {check: "storage-metrics", cause: "NoAnswer: the storage"}}
}

// restarted has the driver of a node start again after a change, and after its repair.
func restarted(n int, change, repair string) func(*scene) {
	return func(s *scene) {
		s.Helper()
		s.later(func() { s.replacePods(nodes[n]) })
		s.later(func() { s.on(nodes[n], repair) })
		s.on(nodes[n], change)
		s.replacePods(nodes[n])
	}
}

// rootSteps are faults of the root and of its disk. A step has one on each node.
func rootSteps() []step {
	ready := "The driver is not ready: "
	return []step{
		{name: "lost roots", begin: (*scene).inlineVolume, faults: []fault{
			{name: "a lost root", alerts: []string{"CausewayNotReady"},
				rows:  []string{ready + "`has no identity.json, but … was served here: is its disk mounted?`"},
				named: []want{notReady(0, "the root is lost", "--lost-roots")}, also: whileNotReady(),
				cause: func(s *scene) { s.withoutDisk(nodes[0]); s.replacePods(nodes[0]) }},
			{name: "a disk that is mounted over",
				rows:  []string{ready + "`is another directory than at the start`"},
				named: []want{notReady(1, "another was mounted over it", "restart the driver")},
				also:  whileNotReady(),
				cause: func(s *scene) {
					s.later(func() { s.replacePods(nodes[1]) })
					s.later(func() { s.on(nodes[1], "umount -l "+root) })
					s.on(nodes[1], "mount -t tmpfs none "+root)
				}},
			{name: "a pod with an inline volume", // after the lost root
				rows:  []string{"A pod does not end: UNAVAILABLE, with an inline volume"},
				named: []want{{"pods-that-end", "Pod/default/inline", "a pod with a volume does not end", "see the log of the driver", pagePodEnd}},
				cause: func(s *scene) {
					s.finds(notReady(0, "the root is lost", "--lost-roots")) // the earlier driver has the root open
					s.kubectl("delete", "pod", "inline", "--wait=false")
				}},
		}},
		{name: "wrong roots", faults: []fault{
			{name: "the wrong disk",
				rows:  []string{ready + "`is …, but … was served here: is the right disk mounted?`"},
				named: []want{notReady(1, "the root is that of another disk", "mount the right disk")}, also: whileNotReady(),
				cause: func(s *scene) { s.exchange(nodes[1], state+"/root-identity", s.identity(nodes[0])) }},
			{name: "the disk of another node", // after the wrong disk, which needs the identity of the first node
				rows:  []string{ready + "`belongs to node \"…\"`"},
				named: []want{notReady(0, "the root is foreign", "return the disk to its node")}, also: whileNotReady(),
				cause: func(s *scene) { s.exchange(nodes[0], root+"/identity.json", s.identity(nodes[1])) }},
		}},
		{name: "a damaged identity", faults: []fault{
			{name: "a damaged identity", rows: []string{ready + "`identity.json of the root: damaged record`"},
				named: []want{notReady(0, "the identity of the root is damaged", "root-identity")}, also: whileNotReady(),
				cause: func(s *scene) { s.exchange(nodes[0], root+"/identity.json", "{") }},
		}},
		{name: "roots with other files", faults: []fault{
			{name: "volumes without their identity",
				rows:  []string{ready + "`has no identity.json and is not empty`"},
				named: []want{notReady(0, "the volumes of this driver without their identity", "delete nothing")},
				also:  whileNotReady(),
				cause: restarted(0, "mv "+root+"/identity.json /var/lib/kubelet/", "mv /var/lib/kubelet/identity.json "+root+"/")},
			{name: "a FIFO in the root",
				rows:  []string{ready + "`unexpected file type`"},
				named: []want{notReady(1, "another type of file", "move it away")}, also: whileNotReady(),
				cause: restarted(1, "cd "+root+" && mv groups kept && mkfifo groups",
					"cd "+root+" && rm groups && mv kept groups")},
		}},
		{name: "roots in use", faults: []fault{
			{name: "another driver on the root",
				rows:  []string{ready + "`another process serves it`"},
				named: []want{notReady(0, "another driver runs on this root", "wait for its end")}, also: whileNotReady(),
				cause: func(s *scene) {
					s.later(func() { s.replacePods(nodes[0]) })
					s.kubectl("-n", install.Namespace, "delete", "pod", "-l", nodePod, "--wait=false",
						"--field-selector=spec.nodeName="+nodes[0].Name)
					s.keep(nodes[0], "flock", "-x", root, "sleep", "3600")
				}},
			{name: "a stalled disk", rows: []string{ready + "`has not answered for …`"},
				named: []want{notReady(1, "the disk of the root stalls", "dmesg")}, also: whileNotReady(),
				cause: func(s *scene) {
					s.later(func() { s.on(nodes[1], "fsfreeze -u "+root) })
					s.on(nodes[1], "fsfreeze -f "+root)
				}},
		}},
		{name: "roots that cannot be written", faults: []fault{
			{name: "a read-only disk", alerts: []string{"CausewayNotReady"},
				rows:  []string{ready + "`is not writable`, `read-only file system`, of the root"},
				named: []want{notReady(0, "the root is read-only", "repair the disk")}, also: whileNotReady(),
				cause: func(s *scene) {
					s.later(func() { s.on(nodes[0], "mount -o remount,rw "+root) })
					s.on(nodes[0], "mount -o remount,ro "+root)
				}},
			{name: "a root that is listed as lost",
				rows:  []string{ready + "`is …, which --lost-roots lists as lost`"},
				named: []want{notReady(1, "a disk that was given up is back", "--lost-roots")}, also: whileNotReady(),
				cause: func(s *scene) {
					out := s.must2(nodes[1].Run(s.anyhow(), "cat", root+"/identity.json"))
					_, id, _ := strings.Cut(out, `"uuid":`)
					s.addFlag("daemonset", "causeway-node", 0, "--lost-roots="+strings.Split(id, `"`)[1])
					s.patch("daemonset", "causeway-node", `[{"op":"add","path":"/spec/updateStrategy","value":{"type":"OnDelete"}}]`)
					s.later(func() { s.replacePods(nodes[1]) })
					s.replacePods(nodes[1])
				}},
		}},
		{name: "missing roots", faults: []fault{
			{name: "no directory of the volumes",
				named: []want{{"pods", "Pod/causeway-node-", "a directory is missing on the node", "mount the disk",
					"docs/how-to/install.md#1-the-nodes-directory"}},
				also: []want{{check: "router", cause: "does not reach a node"}},
				cause: func(s *scene) {
					s.edit("daemonset", "causeway-node", `"hostPath":{"path":"/var/lib/causeway"`, `"hostPath":{"path":"/var/lib/absent"`)
				}},
		}},
		{name: "a directory below the root", faults: []fault{
			{name: "no directory at --root", rows: []string{ready + "`the root must exist`"},
				named: []want{{"driver-ready", "on node-", "the directory --root is missing", "mount the disk", pageNotReady}},
				also:  whileNotReady(),
				cause: func(s *scene) { s.addFlag("daemonset", "causeway-node", 0, "--root="+root+"/none") }},
		}},
		{name: "an empty root", faults: []fault{
			{name: "an empty directory without --init-root",
				rows:  []string{ready + "`is empty and no root was served here before`"},
				named: []want{{"driver-ready", "on node-", "the root is empty", "--init-root", pageNotReady}},
				also:  whileNotReady(),
				cause: func(s *scene) {
					for _, n := range nodes {
						s.later(func() {
							s.on(n, "rmdir "+root+"/empty; rm -rf "+state+" && mv "+state+".kept "+state)
							s.replacePods(n)
						})
						s.on(n, "mkdir "+root+"/empty && cp -a "+state+" "+state+".kept && rm "+state+"/root-identity")
					}
					s.edit("daemonset", "causeway-node", `"--init-root"`, `"--init-root=false","--root=`+root+`/empty"`)
				}},
		}},
		{name: "disks", begin: (*scene).hasHistory, faults: []fault{
			{name: "an almost full disk",
				alerts: []string{"CausewayStorageAlmostFull", "CausewayStorageFull", "CausewayStorageFillsUp"},
				rows:   []string{"Conditions of the storage: `StorageAlmostFull`"},
				named:  []want{{"storage-space", "on node-1", "almost full", "make the disk larger", pageStorage}},
				cause:  func(s *scene) { s.fill(nodes[0], 98) }},
			{name: "a disk with little space",
				named: []want{{"storage-space", "on node-2", "almost full", "make the disk larger", pageStorage}},
				cause: func(s *scene) { s.fill(nodes[1], 93) }},
		}},
		{name: "trash", faults: []fault{
			{name: "a deleted volume with an immutable file",
				alerts: []string{"CausewayTrashStuck"},
				rows:   []string{"Conditions of the storage: `TrashStuck`"},
				named:  []want{{"storage-metrics", "on node-1", "deleted volumes cannot be removed", "lsattr -R", pageStorage}},
				cause: func(s *scene) {
					id := s.use(volumeOf{name: "immutable", without: true})
					s.later(func() { s.on(nodes[0], "chattr -R -i "+root+"/trash "+root+"/volumes; true") })
					s.on(nodes[0], "chattr +i "+data(id)+"/marker-immutable")
					s.kubectl("delete", "pvc", "immutable")
				}},
			{name: "an incomplete object with a mount", alerts: []string{"CausewayStorageUnhealthy"},
				rows:  []string{"Conditions of the storage: `SweepFailed`"},
				named: []want{{"storage-metrics", "on node-2", "an incomplete object of an earlier process", "restart the driver", pageStorage}},
				also:  []want{restarting},
				cause: restarted(1, "mkdir "+root+"/staging/stuck && mount -t tmpfs none "+root+"/staging/stuck",
					"umount -l "+root+"/staging/stuck")},
		}},
		{name: "a root in memory", begin: (*scene).rootInMemory, faults: []fault{
			{name: "no reflinks",
				rows: []string{"A snapshot or a clone fails: FAILED_PRECONDITION, `cannot copy it at a point in time`"},
				named: []want{{"snapshots", "VolumeSnapshotContent/snapcontent-", "the filesystem of the root has no reflinks",
					"end the pods", pageSnapshot}},
				cause: func(s *scene) {
					s.use(volumeOf{name: "in-memory", class: "causeway-hostpath-image", size: "20Mi", node: &nodes[1]})
					s.snapshot("in-memory", "in-memory")
				}},
		}},
		{name: "a root without inodes", begin: (*scene).rootInMemory, faults: []fault{
			{name: "no inodes", alerts: []string{"CausewayInodesAlmostExhausted"},
				rows: []string{"Conditions of the storage: `StorageInodesExhausted`", "A snapshot or a clone fails: RESOURCE_EXHAUSTED"},
				named: []want{{"storage-space", "on node-2", "the inodes of the root are used up", "df -i", pageStorage},
					{"snapshots", "VolumeSnapshotContent/snapcontent-", "has room", "free space", pagePending}},
				also: append(whileNotReady(), want{check: "storage-space", object: "on node-2"}, want{check: "driver-ready", object: "on node-2"}),
				cause: func(s *scene) {
					s.use(volumeOf{name: "no-inodes", class: "causeway-hostpath-image", size: "20Mi", node: &nodes[1], without: true})
					s.later(func() { s.on(nodes[1], "rm -f "+root+"/filler-*") })
					s.on(nodes[1], "cd "+root+"; for i in $(seq 100); do touch filler-$i 2>/dev/null; done; true")
					s.snapshot("no-inodes", "no-inodes")
				}},
		}},
		{name: "state directories", faults: []fault{
			{name: "no state directory",
				rows: []string{"A pod does not start: INTERNAL, `write the staging record in …`"}, also: []want{restarting},
				named: []want{{"pods-with-volumes", "Pod/default/no-state", "the state directory of the driver is gone",
					"restart the driver", pagePodStart}},
				cause: func(s *scene) {
					s.use(volumeOf{name: "no-state", without: true})
					s.later(func() {
						s.on(nodes[0], "rm -rf "+state+"/staged && mv "+state+"/kept "+state+"/staged")
						s.replacePods(nodes[0])
					})
					s.on(nodes[0], "cp -a "+state+"/staged "+state+"/kept && rm -rf "+state+"/staged") // the driver has it open
					s.apply(pod("no-state", nodes[0].Name, "no-state"))
				}},
			{name: "a read-only state directory",
				rows: []string{"A pod does not start: UNAVAILABLE, `write the staging record in …`"},
				named: []want{{"pods-with-volumes", "Pod/default/read-only-state", "the state directory of the driver is full or read-only",
					"repair the disk", pagePodStart}},
				cause: func(s *scene) {
					s.use(volumeOf{name: "read-only-state", node: &nodes[1], without: true})
					staged, name := state+"/staged", "read-only-state"
					s.later(func() { s.on(nodes[1], "umount -l "+staged); s.replacePods(nodes[1]) })
					s.on(nodes[1], "mkdir /run/fresh && mount -t tmpfs none /run/fresh && cp -a "+staged+"/. /run/fresh/ && "+
						"mount --bind /run/fresh "+staged+" && umount /run/fresh && rmdir /run/fresh")
					s.restartDriver(nodes[1]) // it opens the directory at its start
					s.later(func() { s.kubectl("delete", "pod", name, "--now") })
					s.later(func() { s.on(nodes[1], "mount -o remount,rw "+staged) })
					s.on(nodes[1], "mount -o remount,ro "+staged)
					s.apply(pod("read-only-state", nodes[1].Name, "read-only-state"))
				}},
		}},
	}
}

// hasHistory waits until Prometheus has the free space of each pod from a step of the subquery of
// CausewayStorageFillsUp. A step with new pods may have ended seconds ago: with full disks from the
// first step on, nothing is predicted.
func (s *scene) hasHistory() {
	s.Helper()
	await.NoError(s, "there is a history of the free space of each pod", func() error {
		got, err := s.Query("causeway_storage_free_bytes unless count_over_time((causeway_storage_free_bytes and " +
			"causeway_storage_size_bytes > 0)[6h:1m])")
		if err == nil && len(got) > 0 {
			err = fmt.Errorf("%v have none", got)
		}
		return err
	})
}

// rootInMemory puts a filesystem without reflinks, and with few inodes, over the root of the second
// node.
func (s *scene) rootInMemory() {
	s.Helper()
	s.retriesLater()
	s.later(func() { s.replacePods(nodes[1]) })
	s.on(nodes[1], "cd "+root+" && mkdir /run/fresh && mount -t tmpfs -o nr_inodes=100,size=64m none /run/fresh && "+
		"cp -a identity.json groups snapshots staging trash volumes /run/fresh/ && cd / && "+
		"mount --bind /run/fresh "+root+" && umount -l /run/fresh && rmdir /run/fresh")
	s.later(func() { s.on(nodes[1], "umount -l "+root) })
	s.restartDriver(nodes[1])
}

// inlineVolume starts a pod with an inline volume on the first node.
func (s *scene) inlineVolume() {
	s.Helper()
	s.later(func() { s.kubectl("delete", "pod", "inline", "--ignore-not-found") })
	// The container mounts it: the kubelet skips a volume that no container uses.
	s.apply(strings.Replace(pod("inline", nodes[0].Name, "inline"), "persistentVolumeClaim: {claimName: inline}",
		"csi: {driver: "+driverName+", volumeAttributes: {size: 1Mi}}", 1))
	await.NoError(s, "the pod with an inline volume is ready", func() error {
		_, err := s.try("wait", "pod/inline", "--for=condition=Ready", "--timeout=10s")
		return err
	})
}

// identity returns the identity of the root of a node.
func (s *scene) identity(n local.Node) string {
	s.Helper()
	return s.must2(n.Run(s.anyhow(), "cat", root+"/identity.json"))
}

// exchange gives a file of a node another content, and restarts the driver.
func (s *scene) exchange(n local.Node, path, content string) {
	s.Helper()
	s.later(func() { s.on(n, "mv "+path+".kept "+path); s.replacePods(n) })
	s.on(n, "mv "+path+" "+path+".kept && cat >"+path+" <<'END'\n"+content+"\nEND\n")
	s.replacePods(n)
}

// withoutDisk unmounts the data disk of a node until the repair.
func (s *scene) withoutDisk(n local.Node) {
	s.Helper()
	const kept = "/run/kept-disk" // a disk without a mount would lose its loop device to another program
	s.later(func() { s.on(n, "mount --bind "+kept+" "+root+" && umount "+kept+" && rmdir "+kept) })
	s.on(n, "mkdir "+kept+" && mount --bind "+root+" "+kept+" && umount -l "+root) // the driver has it open
}

// fill uses a part of the space of a node until the repair, in percent.
func (s *scene) fill(n local.Node, percent int) {
	s.Helper()
	s.later(func() { s.on(n, "rm -f "+root+"/filler") })
	s.on(n, "fallocate -l $(($(df --output=avail -B1 "+root+" | tail -n1) * "+strconv.Itoa(percent)+" / 100)) "+root+"/filler")
}
