package live

// Reasons why a row of the troubleshooting page or an alert has no fault here.
// docs/contributing/cluster.md has them, too.
const (
	windows     = "the nodes run Linux"
	cifs        = "the kernel of this machine may have no cifs; make test-smb-cluster and make test-vm-smb mount shares"
	noFault     = "no fault: the sidecar or the kubelet calls again, and the call succeeds"
	refers      = "the row refers to another row"
	defect      = "only a defect of the driver causes it; a unit test injects it"
	unit        = "a state that the chart or Kubernetes prevents, or that lasts for moments; unit tests inject it"
	otherKernel = "it needs another kernel, or a disk with errors; make test-vm has some of them"
	slow        = "33 copies would have to hang at the same time, of which four start in a minute; a unit test injects it"
	copies      = "a copy without reflinks that takes minutes; make test-cluster kills drivers in copies"
	notBefore   = "Kubernetes rejects the directory before the driver starts, which is another fault of the table"
	kubelets    = "only NodeGetVolumeHealth reports it, which no kubelet calls yet"
	elsewhere   = "make test-cluster injects it, without doctor"
)

// exceptions are rows and alerts without a fault, with their reasons. "HEADING: *" are all rows of
// a section without a fault.
var exceptions = map[string]string{
	"Windows nodes: *":                                                          windows,
	"Changed blocks are not served: *":                                          unit,
	"Errors of any call: ABORTED":                                               noFault,
	"Errors of any call: UNAVAILABLE, with a node's name":                       refers,
	"Errors of any call: UNAVAILABLE, `too many helper processes`":              slow,
	"Errors of any call: UNAVAILABLE, any other text":                           refers,
	"A claim stays Pending: RESOURCE_EXHAUSTED, right after a delete":           noFault,
	"A claim stays Pending: ABORTED, `another process of the driver`":           noFault,
	"A claim stays Pending: ALREADY_EXISTS":                                     unit,
	"A pod does not start: ABORTED, `is being copied`":                          copies,
	"A pod does not start: UNAVAILABLE, `a device does not answer: /dev/loop…`": otherKernel,
	"A pod does not start: UNAVAILABLE, `filesystem check not completed`":       unit,
	"A snapshot or a clone fails: FAILED_PRECONDITION, `takes for one name`, `may be the alias`, `does not find it`, `levels of directories`, `is a link of the server`": unit,
	"A pod does not start: INVALID_ARGUMENT, `was moved or replaced during the mount`, `leads through a symbolic link`":                                                  unit,
	"A pod does not start: INVALID_ARGUMENT, `is not below`":                                                                                                             unit,
	"A pod does not start: UNAUTHENTICATED, PERMISSION_DENIED":                                                                                                           cifs,
	"A pod does not start: UNIMPLEMENTED, `the kernel cannot mount SMB shares`":                                                                                          cifs,
	"A pod does not start: FAILED_PRECONDITION, `has the Kerberos tickets of`":                                                                                           cifs,
	"A pod does not start: ALREADY_EXISTS":                                                                                                                               unit,
	"A pod does not start: FAILED_PRECONDITION, `the filesystem is read-only`":                                                                                           unit,
	"A pod does not start: FAILED_PRECONDITION":                                                                                                                          unit,
	"A pod does not end: UNAVAILABLE, `other calls wait for servers that do not answer`":                                                                                 cifs,
	"A volume does not grow or change: FAILED_PRECONDITION, `in use: without CAP_SYS_RESOURCE it can be grown only when it is staged again`":                             otherKernel,
	"A volume does not grow or change: UNAVAILABLE, `no space left on device`, `read-only file system`":                                                                  unit,
	"A snapshot or a clone fails: DEADLINE_EXCEEDED, then ABORTED, `bytes so far`":                                                                                       copies,
	"A snapshot or a clone fails: FAILED_PRECONDITION, `is attached to /dev/loop…`":                                                                                      unit,
	"A snapshot or a clone fails: FAILED_PRECONDITION, `copies hang in 8 volumes of namespace …`":                                                                        slow,
	"A snapshot or a clone fails: UNAVAILABLE, `no common point in time`":                                                                                                unit,
	"A snapshot or a clone fails: FAILED_PRECONDITION, `the path of the data is obstructed`; UNAVAILABLE, `a device does not answer`":                                    refers,
	"A volume or a snapshot is not deleted: FAILED_PRECONDITION, `is a handle of csi-driver-smb`":                                                                        unit,
	"A volume or a snapshot is not deleted: FAILED_PRECONDITION or PERMISSION_DENIED, `has files of … open`":                                                             unit,
	"A volume or a snapshot is not deleted: UNAVAILABLE, `is full: delete files on the server`":                                                                          unit,
	"A volume or a snapshot is not deleted: FAILED_PRECONDITION, `is being copied`":                                                                                      copies,
	"A volume or a snapshot is not deleted: FAILED_PRECONDITION, `is attached to /dev/loop…`":                                                                            unit,
	"Conditions of a volume: `DirectIOOff`":                                                                                                                              unit,
	"Conditions of a volume: `DataUnreadable`":                                                                                                                           otherKernel,
	"Conditions of a volume: `CredentialsNotChanged`":                                                                                                                    cifs,
	"Conditions of a volume: `CredentialsNotVerified`":                                                                                                                   cifs,
	"Conditions of a volume: `NodeUnreachable`":                                                                                                                          refers,
	"Conditions of a volume: `NodeForgotten`":                                                                                                                            unit,
	"Conditions of a volume: `NoAnswer`":                                                                                                                                 unit,
	"Conditions of a volume: `StagingMountLost`":                                                                                                                         kubelets,
	"Conditions of the storage: `RootUnusable`":                                                                                                                          refers,
	"Conditions of the storage: `HelpersExhausted`":                                                                                                                      slow,
	"Conditions of the storage: `NoAnswer`":                                                                                                                              unit,
	"Conditions of the storage: `TaskPanicked`":                                                                                                                          defect,
	"The driver does not start: `--kubelet-dir: … no such file or directory`":                                                                                            notBefore,
	"A volume does not grow or change: NodeExpandVolume waits":                                                                                                           unit,
	"A volume or a snapshot is not deleted: FAILED_PRECONDITION, `the source has no directory .causeway/work`":                                                           unit,
	"Errors of the router: `the nodes are not known yet: …`":                                                                                                             noFault,
	"Errors of the router: `none of the N nodes holds it, and all of them answer`":                                                                                       elsewhere,
	"The driver does not start: `mounting needs CAP_SYS_ADMIN`":                                                                                                          unit,
	"The driver does not start: `Linux 5.8 or newer is needed`":                                                                                                          otherKernel,
	"The driver does not start: `another process serves this endpoint`":                                                                                                  unit,
	"The driver does not start: `--state-dir: …`, `read the staging records: …`":                                                                                         unit,
	"Errors of the router: `no node that answers holds it: not all nodes answer: …`":                                                                                     elsewhere,
	"Errors of the router: `the outcome of the call is not known: …`":                                                                                                    noFault,
	"Errors of the router: `node … reports the topology … of another node`":                                                                                              defect,
	"Errors of the router: `no node has answered in …, for …`":                                                                                                           noFault,
	"Errors of the router: `the driver of node … is too old for this call`":                                                                                              unit,
	"Errors of the router: `answered with the ID …, which is another node's`, `answered with the malformed ID …`":                                                        defect,
	"Errors of the router: `the group is not made on all of its nodes yet: …`":                                                                                           noFault,
	"Errors of the router: `the group was made, and node … has its part, but another node has lost its own`":                                                             unit,
	"Errors of the router: `node … is gone for good: --forgotten-nodes names it`":                                                                                        elsewhere,
	"Errors of the router: `no node has made it`":                                                                                                                        unit,
	"CausewayBackgroundPanic": defect,
	"CausewayJobsWait":        copies,
	"CausewayHelpersBusy":     slow,
}
