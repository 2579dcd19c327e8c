package live

import (
	"bufio"
	"io"
	"os"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// sick returns the finding of a volume with a condition.
func sick(claim, cause, remedy string) want {
	return want{"volume-health", "PersistentVolumeClaim/default/" + claim, cause, remedy, pageVolume}
}

// volumeSteps are the conditions of volumes.
func volumeSteps() []step {
	const images = "causeway-hostpath-image"
	unreadable := want{"storage-metrics", "Pod/causeway-node-", "records of volumes, snapshots or groups cannot be read",
		"RecordUnreadable", pageVolume}
	return []step{{name: "a missing record", faults: []fault{ // after a restart of the driver it is RecordUnreadable
		{name: "a missing record",
			rows:  []string{"Conditions of a volume: `RecordMissing`"},
			named: []want{sick("lacks", "the record of the volume is gone", "restore the record")},
			cause: func(s *scene) { s.swap(volume(s.use(volumeOf{name: "lacks", without: true}))+"/record.json", "true") }},
	}}, {name: "volumes", begin: (*scene).retriesLater, faults: []fault{
		{name: "a torn record", alerts: []string{"CausewayUnreadableRecords", "CausewayVolumesUnhealthy"},
			rows: []string{"Conditions of a volume: `RecordUnreadable`"}, also: []want{restarting},
			named: []want{unreadable, sick("torn", "RecordUnreadable: the record of the volume cannot be read",
				"restore the record")},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "torn", without: true})
				s.later(func() { s.replacePods(nodes[0]) })
				s.swap(volume(id)+"/record.json", "echo '{' >"+volume(id)+"/record.json")
				s.restartDriver(nodes[0])
			}},
		{name: "a pod with a torn record", rows: []string{"Errors of any call: INTERNAL, `is unusable: damaged record`"},
			named: []want{{"pods-with-volumes", "Pod/default/torn-too", "the record of the volume or snapshot is damaged",
				"RecordUnreadable", pageVolume}},
			also: []want{sick("torn-too", "cannot be read", "")},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "torn-too", without: true})
				s.later(func() { s.replacePods(nodes[0]) })
				s.swap(volume(id)+"/record.json", "echo '{' >"+volume(id)+"/record.json")
				s.restartDriver(nodes[0])
				s.apply(pod("torn-too", nodes[0].Name, "torn-too"))
			}},
		{name: "a record of a newer release",
			rows:  []string{"Conditions of a volume: `RecordOfNewerVersion`"},
			named: []want{sick("newer", "a newer release made the record", "run that release")},
			also:  []want{unreadable},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "newer", without: true})
				record := volume(id) + "/record.json"
				s.swap(record, "sed -E 's/\"version\": *[0-9]+/\"version\": 99/' "+away(record)+" >"+record)
			}},
		{name: "missing data",
			rows:  []string{"Conditions of a volume: `DataMissing`"},
			named: []want{sick("missing", "the data of the volume is gone", "move the data back")},
			cause: func(s *scene) { s.swap(data(s.use(volumeOf{name: "missing", without: true})), "true") }},
		{name: "a volume that does not exist on its node",
			rows: []string{"A pod does not start: NOT_FOUND", "Conditions of a volume: `VolumeNotFound`"},
			also: []want{sick("vanished", "the data of the volume is gone", "")}, // until the next round of the health monitor
			named: []want{{"pods-with-volumes", "Pod/default/vanished", "does not exist on its node", "bring the disk back",
				"docs/how-to/replace-a-node.md"},
				{"volume-health", "default/vanished", "does not exist on its node", "bring the disk back", "docs/how-to/replace-a-node.md"}},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "vanished", without: true})
				s.later(func() { s.restartDriver(nodes[0]) }) // after the swap back: else the volume would stay as an orphan
				s.swap(volume(id), "true")
				s.finds(sick("vanished", "", "")) // the health monitor asks only for volumes that had a condition
				s.restartDriver(nodes[0])         // it knows the volume until then
				s.apply(pod("vanished", nodes[0].Name, "vanished"))
			}},
		{name: "a pod without data",
			rows:  []string{"A pod does not start: INTERNAL, `cannot mount the data of volume`"},
			named: []want{{"pods-with-volumes", "Pod/default/gone", "the data of the volume is gone", "restore it from a backup", pageVolume}},
			also:  []want{sick("gone", "the data of the volume is gone", "")},
			cause: func(s *scene) {
				s.swap(data(s.use(volumeOf{name: "gone", without: true})), "true")
				s.apply(pod("gone", nodes[0].Name, "gone"))
			}},
		{name: "a truncated image",
			rows:  []string{"Conditions of a volume: `ImageTruncated`"},
			named: []want{sick("truncated", "the image is shorter than its record", "restore it from a backup")},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "truncated", class: images, size: "20Mi", without: true})
				s.on(nodes[0], "truncate -s 1M "+volume(id)+"/image.raw")
			}},
		{name: "quotas that are off", alerts: []string{"CausewayVolumesDegraded"},
			rows:  []string{"Conditions of a volume: `SizeNotEnforced`"},
			named: []want{sick("preferred", "the size of the directory is not enforced", "prjquota")},
			cause: func(s *scene) {
				s.later(func() { s.kubectl("delete", "storageclass", "preferred") })
				s.apply(class("preferred", driverName, "WaitForFirstConsumer", "kind: directory, enforce: preferred"))
				s.use(volumeOf{name: "preferred", class: "preferred"})
			}},
		{name: "a filesystem that has found errors",
			rows:  []string{"Conditions of a volume: `FilesystemErrors`"},
			named: []want{sick("errors", "the filesystem in the image has found errors", "dmesg")},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "errors", class: images, size: "20Mi"})
				s.on(nodes[0], "mount -o remount,errors=continue "+s.mounted(s.device(id))+" && echo test >/sys/fs/ext4/"+s.device(id)+"/trigger_fs_error")
			}},
		{name: "a filesystem that is read-only after an error",
			rows:  []string{"Conditions of a volume: `FilesystemReadOnly`"},
			named: []want{sick("readonly", "read-only after an error", "dmesg")},
			also:  []want{sick("readonly", "has found errors", "")},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "readonly", class: images, size: "20Mi"})
				device := s.device(id)
				s.on(nodes[0], "mount -o remount,errors=remount-ro "+s.mounted(device)+"; echo test >/sys/fs/ext4/"+device+
					"/trigger_fs_error")
			}},
		{name: "a filesystem that has shut itself down",
			rows:  []string{"Conditions of a volume: `FilesystemDown`"},
			named: []want{sick("down", "the filesystem has shut itself down", "dmesg")},
			also:  []want{{check: "volume-health", object: "default/down"}},
			cause: func(s *scene) {
				s.later(func() { s.kubectl("delete", "storageclass", "images-xfs") })
				s.apply(class("images-xfs", driverName, "WaitForFirstConsumer",
					"kind: image, csi.storage.k8s.io/fstype: xfs"))
				id := s.use(volumeOf{name: "down", class: "images-xfs", size: "320Mi"})
				s.on(nodes[0], "python3 -c \"import fcntl,os,struct; fcntl.ioctl(os.open('"+s.mounted(s.device(id))+
					"', os.O_RDONLY), 0x8004587d, struct.pack('I', 2))\"")
			}},
		{name: "copies that hang", alerts: []string{"CausewayCopyStalled", "CausewayCallStuck"},
			rows: []string{"Conditions of a volume: `CopyStalled`",
				"A snapshot or a clone fails: FAILED_PRECONDITION, `no progress for 1m0s at …`",
				"A snapshot or a clone fails: FAILED_PRECONDITION, `an earlier copy still hangs since …`"},
			named: []want{sick("hangs-0", "a snapshot or clone hangs at a file of the volume", "end the pods"),
				{"snapshots", "VolumeSnapshotContent/snapcontent-", "a copy hangs", "end the pods", pageSnapshot},
				{"storage-metrics", "Pod/causeway-node-", "copies hang in the kernel", "CopyStalled", pageVolume}},
			also: []want{sick("hangs-", "a snapshot or clone hangs at a file of the volume", ""),
				{check: "storage-metrics", cause: "deleted volumes cannot be removed"}}, // an incomplete copy
			cause: func(s *scene) {
				for _, name := range []string{"hangs-0", "hangs-1", "hangs-2", "hangs-3"} {
					s.snapshotOfHanging(name, data(s.use(volumeOf{name: name}))+"/marker-"+name)
				}
			}},
		{name: "a freeze that stalls",
			rows:  []string{"Conditions of a volume: `FilesystemStalled`"},
			named: []want{sick("frozen", "a freeze or the growth of the filesystem stalls", "end the pods")},
			also:  []want{{check: "snapshots", object: "VolumeSnapshotContent/"}},
			cause: func(s *scene) {
				id := s.use(volumeOf{name: "frozen", class: images, size: "20Mi"})
				s.snapshotOfHanging("frozen", s.mounted(s.device(id))+"/marker-frozen")
			}},
	}}}
}

// restartDriver replaces the driver's pod of a node, and waits until it is ready.
func (s *scene) restartDriver(n local.Node) {
	s.Helper()
	s.replacePods(n)
	await.NoError(s, "the driver of "+n.Name+" is ready", func() error {
		_, err := s.try("-n", install.Namespace, "rollout", "status", "daemonset/causeway-node", "--timeout=5s")
		return err
	})
}

// away returns the path to which swap moves a path.
func away(path string) string { return root + "/away" + strings.ReplaceAll(path, "/", "-") }

// device returns the name of the loop device of an image.
func (s *scene) device(id string) string {
	s.Helper()
	out := s.output("losetup -ln -O NAME,BACK-FILE | grep " + id)
	return strings.TrimPrefix(strings.Fields(out)[0], "/dev/")
}

// mounted returns a path at which a device is mounted on the first node.
func (s *scene) mounted(device string) string {
	s.Helper()
	return strings.Fields(s.output("grep '^/dev/" + device + " ' /proc/mounts"))[1]
}

// output returns the output of a shell command on the first node.
func (s *scene) output(line string) string {
	s.Helper()
	return s.must2(nodes[0].Run(s.anyhow(), "sh", "-c", line))
}

// snapshotOfHanging has a process hang in a write to a file on the first node, as those of a pod
// can, and makes a snapshot.
func (s *scene) snapshotOfHanging(claim, file string) {
	s.Helper()
	cmd, err := nodes[0].Command(s.anyhow(), "/proc/self/fd/3", file)
	s.must(err)
	program, err := os.Open("/proc/self/exe")
	s.must(err)
	defer program.Close()
	cmd.ExtraFiles, cmd.Env = []*os.File{program}, append(cmd.Env, hang.Env+"=write")
	stdin, err := cmd.StdinPipe()
	s.must(err)
	stdout, err := cmd.StdoutPipe()
	s.must(err)
	s.must(cmd.Start())
	s.later(func() {
		stdin.Close() // completes the write
		cmd.Wait()
	})
	if _, err := bufio.NewReader(io.LimitReader(stdout, 100)).ReadString('\n'); err != nil {
		s.Fatal("a process that hangs: ", err)
	}
	s.snapshot(claim, claim)
	await.NoError(s, "the snapshot has a content", func() error {
		_, err := s.try("wait", "volumesnapshot/"+claim, "--for=jsonpath={.status.boundVolumeSnapshotContentName}", "--timeout=10s")
		return err
	})
}
