package doctor

import (
	"regexp"
	"strings"
)

// Pages of the documentation.
const (
	troubleshooting = "docs/how-to/troubleshooting.md"
	pageNotReady    = troubleshooting + "#the-driver-is-not-ready"
	pageNoStart     = troubleshooting + "#the-driver-does-not-start"
	pageSidecars    = troubleshooting + "#the-sidecars-are-not-ready"
	pageRouter      = troubleshooting + "#errors-of-the-router"
	pageStorage     = troubleshooting + "#conditions-of-the-storage"
	pageVolume      = troubleshooting + "#conditions-of-a-volume"
	pagePending     = troubleshooting + "#a-claim-stays-pending"
	pagePodStart    = troubleshooting + "#a-pod-does-not-start"
	pageSnapshot    = troubleshooting + "#a-snapshot-or-a-clone-fails"
	pageDelete      = troubleshooting + "#a-volume-or-a-snapshot-is-not-deleted"
	pageChange      = troubleshooting + "#a-volume-does-not-grow-or-change"
	pagePodEnd      = troubleshooting + "#a-pod-does-not-end"
	pageAnyCall     = troubleshooting + "#errors-of-any-call"
	pageInstall     = "docs/how-to/install.md#5-check-the-installation"
	pageDirectory   = "docs/how-to/install.md#1-the-nodes-directory"
	pageCRDs        = "docs/how-to/install.md#2-the-crds-of-snapshots"
	pageSteps       = "docs/how-to/install.md#4-install"
	pageObjects     = "docs/how-to/install.md#objects"
	pageRequires    = "docs/how-to/install.md#requirements"
	pageCerts       = "docs/how-to/certificates.md#errors-of-certificates"
	pageRotation    = "docs/how-to/certificates.md#rotation"
	pageFailures    = "docs/how-to/node-failures.md"
	pageReplace     = "docs/how-to/replace-a-node.md"
	pageMetrics     = "docs/how-to/alerts.md"
	pageLeaders     = "docs/explanation/csi-sidecars.md"
	pageSMB         = "docs/how-to/smb.md"
	pageVersions    = "docs/reference/compatibility.md#versions"
	pageSizes       = "docs/reference/parameters.md#sizes"
	pageCost        = "docs/explanation/snapshots.md#cost"
	pageConsistency = "docs/explanation/snapshots.md#consistency-of-a-copy"
)

// message is a known message of the driver, a sidecar, the kubelet or the API server.
type message struct {
	match               *regexp.Regexp
	cause, remedy, page string
	smb                 bool // only of shares
}

func known(pattern, cause, remedy, page string) message {
	return message{match: regexp.MustCompile(pattern), cause: cause, remedy: remedy, page: page}
}

// ofShare is a message that has this cause only if it is about a share.
func ofShare(pattern, cause, remedy, page string) message {
	m := known(pattern, cause, remedy, page)
	m.smb = true
	return m
}

// about is a message that has no text of its own.
func about(cause, remedy, page string) message {
	return message{cause: cause, remedy: remedy, page: page}
}

// Cause and remedy of a root that has files and no identity.
const (
	notEmpty = "the root has files and no identity.json: those of another program, or the volumes of " +
		"this driver without their identity"
	deleteNothing = "if <root>/volumes exists, delete nothing: compare its entries with the volume handles of the " +
		"node's PersistentVolumes, and then restore identity.json from its copy root-identity in the state " +
		"directory of the driver; if the files are those of another program, name another, empty directory in " +
		"hostpath.root"
)

// driverMessages are the reasons of /readyz and the last words of a driver that ended. The first
// match counts.
var driverMessages = []message{
	known(`--state-dir:|read the staging records`, "the state directory cannot be made or written",
		"repair the disk of the kubelet's directory", pageNoStart),
	known(`the root must exist`, "the directory --root is missing on the node",
		"mount the disk of the node, or make the directory", pageNotReady),
	known(`is empty and no root was served here before`, "the root is empty, and is perhaps the mount point of an absent disk",
		"mount the disk; if the root is new, start the driver with --init-root", pageNotReady),
	known(`has no identity\.json, but .* was served here`, "the root is lost: it is empty and was not, most likely because its disk is not mounted",
		"mount the disk; if the disk is lost for good, name its UUID in --lost-roots (hostpath.lostRoots)", pageNotReady),
	known(`but .* was served here: is the right disk mounted`, "the root is that of another disk", "mount the right disk",
		pageNotReady),
	known(`--lost-roots lists as lost`, "a disk that was given up is back",
		"to serve this disk, replace its UUID in --lost-roots by that of the other disk", pageNotReady),
	known(`belongs to node`, "the root is foreign: the disk comes from another node, or the node was renamed",
		"return the disk to its node, or give the node its old name", pageNotReady),
	known(`has no identity\.json and is not empty`, notEmpty, deleteNothing, pageNotReady),
	known(`identity\.json of the root: damaged record`,
		"the identity of the root is damaged: identity.json is torn or was edited",
		"first verify that the disk is that of this node: compare ls <root>/volumes with the volume handles of "+
			"the node's PersistentVolumes; only then restore identity.json from its copy root-identity in the "+
			"state directory of the driver", pageNotReady),
	known(`unexpected file type`, "another type of file is at a path of the driver in the root",
		"move it away, and restore the original", pageNotReady),
	known(`another process serves it`, "another driver runs on this root", "wait for its end, or end it", pageNotReady),
	known(`another process serves this endpoint`, "another driver runs on this node", "end the other driver", pageNoStart),
	known(`is not writable|read-only file system`, "the root is read-only, often after an error of the disk",
		"see dmesg on the node, and repair the disk", pageNotReady),
	known(`has not answered for`, "the disk of the root stalls", "see dmesg on the node, and repair the disk or its connection",
		pageNotReady),
	known(`is another directory than at the start`, "the disk of the root was unmounted, or another was mounted over it",
		"restart the driver of the node", pageNotReady),
	known(`mounting needs CAP_SYS_ADMIN`, "the driver is not root in a privileged container", "run it privileged", pageNoStart),
	known(`Linux 5\.8 or newer is needed`, "the kernel of the node is too old", "upgrade the kernel", pageNoStart),
	known(`--kubelet-dir: .*no such file`, "the kubelet's directory is elsewhere, or is not mounted into the container",
		"set kubeletDir to the kubelet's --root-dir", pageNoStart),
	known(`flag provided but not defined|invalid value|has no effect with|invalid --|is not a flag`,
		"the driver does not accept its command line", "correct extraArgs, or run images of the chart's release", pageInstall),
}

// sidecarMessages are those of csi-sidecars and csi-sidecars-node.
var sidecarMessages = []message{
	known(`permission denied`, "the sidecar may not open the driver's socket", "correct the user of the pod's containers: the message has the path, its owner and its mode", pageSidecars),
	known(`[Cc]annot register the driver|registration`,
		"the driver is not registered with the kubelet: the registration directory is missing or read-only, or the "+
			"kubelet refused the driver",
		"the message names the directory; if the kubelet's root is elsewhere, set kubeletDir", pageSidecars),
	known(`forbidden|cannot (list|watch|get|create|patch|update)`, "the ServiceAccount lacks a right",
		"apply the roles of the chart again", pageObjects),
	known(`socket|connect|has not told its name yet|name is not known yet`, "the driver's socket does not exist or does not answer", "see the log of the container driver in this pod", pageSidecars),
}

// podMessages are those of the kubelet and of the API server about a pod of the driver.
var podMessages = []message{
	known(`violates PodSecurity|PodSecurity|hostprocess containers are not allowed`, "Pod Security rejects the pods: the namespace does not permit privileged pods",
		"kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged", pageSteps),
	known(`insufficient quota to match these scopes`, "the cluster permits the priority class in some namespaces only",
		"set resourceQuota.create", pageInstall),
	known(`ErrImagePull|ImagePullBackOff|ErrImageNeverPull|InvalidImageName|Failed to pull image`, "the node cannot pull an image",
		"push or load the images, and correct images.registry and images.tag", pageInstall),
	known(`secret "[^"]*" not found`, "a secret does not exist, mostly that of the certificates",
		"make the certificates", "docs/how-to/install.md#3-the-certificates"),
	known(`configmap "[^"]*" not found`, "a ConfigMap of the installation does not exist", "apply the chart again", pageObjects),
	known(`references non-existent secret key|couldn't find key`, "a secret lacks a key",
		"make the secret again, with ca.crt, tls.crt and tls.key", pageCerts),
	known(`hostPath type check failed\W \S*(plugins_registry|kubelet)`, "the kubelet's directory is elsewhere on this node",
		"set kubeletDir to the kubelet's --root-dir", pageNoStart),
	known(`hostPath type check failed`, "a directory is missing on the node",
		"mount the disk of the node there; only if the path was never on a disk of its own, mkdir -p the path in the message", pageDirectory),
	known(`Insufficient (cpu|memory)`, "no node has enough cpu or memory for the pod", "free resources of the node", pageInstall),
	known(`denied the request|admission webhook|ValidatingAdmissionPolicy`, "an admission policy rejects the pods",
		"permit the pods of the namespace in that policy", "docs/how-to/install.md#privileges"),
	known(`forbidden`, "the API server rejects the pods", "see the message", "docs/how-to/install.md#privileges"),
}

// callMessages are errors of calls, in events of claims, pods and contents. They are compared with
// the text from its first "code = ", without the quoted names in it (unnamed): a tenant chooses the
// names of files. Messages of the router have no such name, and are anchored.
var callMessages = []message{
	known(`^code = Unavailable desc = connection error: desc = "[^"]*dial unix `,
		"the driver does not run on the node, or its socket does not answer",
		"see the pod of the driver on that node", pageSidecars),
	known(`^code = FailedPrecondition desc = .*(holds a lease|too deep|are being moved)`,
		"the content of the volume cannot be copied as it is",
		"the message names the entry; the page has the remedy for each reason", pageConsistency),
	known(`^code = FailedPrecondition desc = .*(no progress for|an earlier copy still hangs|copies hang in)`,
		"a copy hangs: a process in a pod holds the lock of a file", "end the pods that use the volume", pageSnapshot),
	known(fromRouter+`none of the \d+ nodes is in any topology that the volume may have`,
		"the topology of the claim or of its class has no node with the driver",
		"run the driver on the node of the pod, or correct allowedTopologies of the class", pagePending),
	known(fromRouter+`none of the \d+ nodes is in `,
		"the node that the claim names has no driver: its pod does not exist there, or the topology "+
			"is that of no node",
		"run the driver there; if the topology is that of no node, correct allowedTopologies of the class", pageRouter),
	known(fromRouter+partial+`((not all nodes answer: )(.*; )?)?several addresses report (the same|this) node: `,
		"several addresses report the same node",
		"end the wrong driver; for two addresses of one node: ipFamilyPolicy: SingleStack", pageRouter),
	known(fromRouter+partial+`the nodes are not known yet`, "the router does not know the nodes yet",
		noAddresses, pageRouter),
	known(fromRouter+`none of the \d+ nodes holds it, and all of them answer`,
		"no node holds the volume or snapshot, and all of them answer",
		"bring back its node, or the pod of the driver there; or look for its directory on the disks of the nodes, "+
			"and move it back; only if its data is lost for good, name the node in hostpath.forgottenNodes", pageRouter),
	known(fromRouter+`(no node that answers holds it: |node [^"]* does not answer|not all nodes answer|`+
		`no node answers|no node has answered)`,
		"a node that the call needs is away",
		"bring the node back; only if its data is lost for good, name it in hostpath.forgottenNodes", pageRouter),
	known(`^code = Unavailable desc = .*(refused our certificate|wrong CA|has expired|it refused us|`+
		`is not valid before)`,
		"the certificates of router and node do not match",
		"replace the certificates", pageCerts),
	known(`is unusable: damaged record`, "the record of the volume or snapshot is damaged", "see RecordUnreadable", pageVolume),
	known(`the path of the data is obstructed`, "the path of the data is obstructed: another type of file is there, or nothing",
		"remove the obstacle that the message names, and move the data back", pagePodStart),
	known(`cannot mount the data of volume.*no such file or directory|is missing: restore it from a backup`,
		"the data of the volume is gone", "move the data back to the path in the message, and the record.json beside it; or "+
			"restore it from a backup, if the record is there", pageVolume),
	known(`invalid filesystem type`, "the filesystem type of the class is not possible",
		"delete the class and make it again with another csi.storage.k8s.io/fstype: a pending claim is retried; a "+
			"bound claim keeps the type of its PersistentVolume, so make it again, too", ""),
	known(`not the filesystem expected`, "the image has no filesystem that can be mounted or repaired automatically",
		"see dmesg on the node; to repair the image by hand, end the pods of the volume and copy the image before "+
			"e2fsck", pagePodStart),
	known(`write the staging record in`, "the state directory of the driver is gone, full or read-only on the node",
		"repair the disk of the kubelet's directory; if the directory was removed, restart the driver of the node", pagePodStart),
	known(`cannot copy it at a point in time`, "the volume is mounted, and the filesystem of the root has no reflinks",
		"end the pods of the volume meanwhile, or use a root with reflinks", pageSnapshot),
	known(`has no directory \.causeway/work`, "the filesystem of the source is not mounted on the SMB server, or .causeway was removed",
		"mount it on the server; if all volumes of the source are gone for good, make the directory", pagePending),
	known(`is in the directory of volume|is the source of other volumes|directories of two volumes overlap`,
		"the directory of the volume overlaps with that of another volume or source", "choose another source or subDir", pagePending),
	known(`no record of this source names it`, "the directory exists on the share, and is not that of a volume of this source",
		"choose another subDir, or share the directory with existing: use", pagePending),
	known(`code = \w+ desc = .*is mounted at|code = FailedPrecondition.* mounted at`, "the volume is in use on its node",
		"end the pods and the mounts that the message names", pageDelete),
	known(`is unusable: record of a newer version`, "a newer release made the record of the volume or snapshot",
		"run that release, or a later one", pageVolume),
	known(`no credentials for`, "the chart does not list the share of the class", "add it to smb.shares, with the server spelled as in the class", pagePending),
	ofShare(`^code = (Unauthenticated|PermissionDenied)|NT_STATUS_LOGON_FAILURE|NT_STATUS_ACCESS_DENIED`, "the SMB server rejects the credentials",
		"correct the Secret of the share, or the rights on the server", pagePodStart),
	ofShare(`multiple connections to a server|a session with this server exists, of another user|`+
		`\bmapp(ed|ing)\b.*\b1219\b`, "the node has a mapping of this server as another user",
		"use one user for each server", troubleshooting+"#windows-nodes"),
	ofShare(`the server (or the network )?does not answer|connection refused|no such host`, "the SMB server is away, or its name is wrong",
		"repair the server, the name or the network", pagePending),
	known(`the kernel cannot mount SMB shares`, "the module cifs is missing on the node", "modprobe cifs on the node", pagePodStart),
	known(`too many helper processes`, "all helper processes of the node hang", "end the pods of the volumes with CopyStalled or FilesystemStalled", pageAnyCall),
	tooFewFiles,
	known(`a device does not answer`, "a loop device of the node does not answer",
		"see dmesg on the node, and end the pod that uses the device", pagePodStart),
}

// fromRouter is the beginning of a message of the router.
const fromRouter = `^code = \w+ desc = ([a-z ]+ ID \S+: )?(the group is not made on all of its nodes yet: )?`

// partial is the beginning of a message of the router about its view of the nodes.
const partial = `(no node (that answers holds it|answers in [^"]*): )?`

// codeMessages are errors that only their code tells. Without a page, the page is that of the call.
var codeMessages = []message{
	known(`(invalid|unknown) access mode`, "the access mode of the claim is not possible",
		"make the claim again with another access mode", ""),
	known(wrongValue, notPossible, "delete the class and make it again with the right value: the message names it; "+
		"the claim is retried", ""),
	known(`^code = OutOfRange`, "the size does not fit on the disk of the volume",
		"set a smaller size in the claim, or free space", ""),
	known(`^code = ResourceExhausted|no space left`, "no node that the pod can run on has room", "free space, or permit other nodes", pagePending),
	known(`is being copied|^code = Aborted`, "another call for the same volume is running for long", "wait; if it stays, see the page", pageSnapshot),
	known(`^code = FailedPrecondition`, "the state of the volume does not permit the call", "see the message on the page", pagePodStart),
	known(`^code = NotFound`, "an object that the call needs does not exist",
		"see the message and the page; delete nothing before you know that the data is lost", ""),
	known(`^code = DataLoss`, "data of the volume is lost", "restore it from a backup", pageVolume),
	notRegistered,
	known(`match PersistentVolume's node affinity|volume node affinity conflict`,
		"no node that the pod can run on has its volumes: they are on another node, on different nodes, or on a node with "+
			"too few resources", "permit the pod to run on the node of its volumes", pagePodStart),
	known(`FailedScheduling|did not have enough free storage|node\(s\)`, "no node has room for the volume, or none of its nodes can run the pod",
		"free space, or permit other nodes", pagePending),
	known(`^code = (Unavailable|DeadlineExceeded|Internal|Unknown)`, "the driver cannot serve the call now", "see the log of the driver", pageAnyCall),
}

// tooFewFiles is the error of a driver that runs, and cannot open files.
var tooFewFiles = known(`too many open files|cannot allocate memory`, "the driver has too few files or too little memory", "raise the limit", pageAnyCall)

// notRegistered is the error of a kubelet, and of the provisioner about a node, that do not know the driver.
var notRegistered = known(`not found in the list of registered CSI drivers|^error generating accessibility requirements: no topology key found for node `,
	"the driver is not registered on the node of the pod", "see the pod of the driver on that node", pageSidecars)

// missingVolume is the error NotFound of a pod: its volume is not on its node.
var missingVolume = known(`^code = NotFound`,
	"the volume does not exist on its node: its disk was lost or replaced, or its directory was moved",
	lookFirst, pageReplace)

// wrongValue is the error of a value that the driver rejects.
const (
	wrongValue  = `(unknown|invalid|unexpected) parameter|code = InvalidArgument`
	notPossible = "a parameter, the filesystem or the access mode of the claim or its class is not possible"
)

// Values that the driver rejects, of calls that no StorageClass repairs. The parameters of a
// VolumeSnapshotClass can be changed, those of the other classes cannot.
var (
	wrongSnapshotClass = known(wrongValue, "a parameter of the class is not possible",
		"correct the VolumeSnapshotClass: the message names the value", "")
	wrongAttributes = known(wrongValue, "a parameter of the class is not possible",
		"make another VolumeAttributesClass with the right value, and name it in the claim: the message names the value", "")
	wrongMount = known(`^code = InvalidArgument`, "the node rejects a property of the volume",
		"see the message; a PersistentVolume keeps the values of its class: make the class again with the right value, "+
			"and then the claim; for an inline volume correct the pod", "")
)

// claimMessages are errors of the provisioner about a claim, before it calls the driver: they have
// no code.
var claimMessages = []message{
	known(`requested volume size \d+ is less than the size \d+ for the source snapshot|`+
		`new PVC request must be greater than or equal in size`,
		"the claim is smaller than its source", "make the claim again with at least the size in the message", pageSnapshot),
	sourceNotReady, noSource, noAttributes, noRight, noSecret,
}

// Errors about objects that a claim or its class names. Names in the errors of the API server are
// quoted.
var (
	sourceNotReady = known(`snapshot \S+ (is not Ready|not bound)|the PVC DataSource \S+ must have a status of Bound`,
		"the source of the claim is not ready",
		"see the snapshot or the claim in the message: this claim is retried", pageSnapshot)
	noSource = known(`error getting (snapshot|PVC) .* not found`, "the source of the claim does not exist",
		"make the source, or make the claim again with another dataSource", pageSnapshot)
	noAttributes = known(`volumeattributesclass(es)?\.\S+ "" not found`,
		"the VolumeAttributesClass of the claim does not exist",
		"make the VolumeAttributesClass, or name another in the claim", "")
	noRight = known(`secrets "" is forbidden`, "the class names a Secret that the controller may not read: it has a key "+
		"csi.storage.k8s.io/…-secret-name",
		"make the class again without these keys; only for shares: name the Secret in controllerSecretName of the chart, or "+
			"set smb.controller.readAllSecrets", "docs/reference/parameters.md")
	noSecret = known(`failed to find the secret|error getting secret .* not found`, "the Secret that the class or the "+
		"volume names does not exist", "make the Secret: the message has its namespace and its name", "")
)

// growsLater is the error of a growth for which the machine takes a capability from the driver.
var growsLater = known(`without CAP_SYS_RESOURCE it can be grown only when it is staged again`,
	"the filesystem in use cannot grow without CAP_SYS_RESOURCE",
	"end the pods of the volume: it grows when it is staged again", pageChange)

// conditionMessages are the conditions of a volume, by reason.
var conditionMessages = map[string]message{
	"RecordUnreadable": about("the record of the volume cannot be read (RecordUnreadable)",
		"restore the record that the event names, and restart the driver of the node", pageVolume),
	"RecordMissing": about("the record of the volume is gone: the volume is unusable from the next start of the driver on "+
		"(RecordMissing)", "before the next start of the driver, restore the record that the event names, or copy the data to "+
		"a new volume", pageVolume),
	"RecordOfNewerVersion": about("a newer release made the record of the volume (RecordOfNewerVersion)",
		"run that release, or a later one", pageVolume),
	"DataMissing": about("the data of the volume is gone, or its path is obstructed (DataMissing)",
		"move the data back to the path in the event, and the record.json beside it; or restore it from a backup, if the "+
			"record is there", pageVolume),
	"VolumeNotFound": about("the volume does not exist on its node: its disk was lost or replaced, or "+
		"the volume was moved or deleted outside of Kubernetes (VolumeNotFound)", lookFirst, pageReplace),
	"ImageTruncated": about("the image is shorter than its record says (ImageTruncated)", "restore it from a backup",
		pageVolume),
	"SizeNotEnforced": about("the size of the directory is not enforced (SizeNotEnforced)",
		"mount the root with prjquota, or enable quotas of btrfs; the event has the reason", pageVolume),
	"FilesystemErrors": about("the filesystem in the image has found errors (FilesystemErrors)",
		"see dmesg on the node, take a snapshot, and end the volume's pods", pageVolume),
	"FilesystemReadOnly": about("the filesystem in the image is read-only after an error (FilesystemReadOnly)",
		"see dmesg on the node, take a snapshot, and end the volume's pods", pageVolume),
	"FilesystemStalled": about("a freeze or the growth of the filesystem stalls (FilesystemStalled)",
		"end the pods that use the volume", pageVolume),
	"FilesystemDown": about("the filesystem has shut itself down (FilesystemDown)",
		"see dmesg on the node, and end the volume's pods", pageVolume),
	"CopyStalled": about("a snapshot or clone hangs at a file of the volume (CopyStalled)",
		"end the pods that use the volume", pageVolume),
	"CopyFailed": about("the last snapshot or clone failed because of the volume's content (CopyFailed)",
		"the event names the entry: see the messages on the page", pageVolume),
	"DataUnreadable": about("the disk returns an error (DataUnreadable)", "see dmesg on the node", pageVolume),
	"CredentialsNotChanged": about("the mount has other credentials than the Secret (CredentialsNotChanged)",
		"delete the pods that use the volume: it is then staged again", pageVolume),
	"CredentialsNotVerified": about("the server has not accepted the changed Secret (CredentialsNotVerified)",
		"correct the Secret or the server", pageVolume),
	"StagingMountLost": about("the staging path is no longer mounted (StagingMountLost)",
		"end the pods that use the volume", pageVolume),
	"NoAnswer": about("the driver does not answer calls for the volume, while it answers others (NoAnswer)",
		"see dmesg and the log of the driver on the node of the volume", pageVolume),
	"NodeForgotten": about("the node of the volume is in the list of forgotten nodes (NodeForgotten)",
		"if the node exists, remove its name from hostpath.forgottenNodes; if not, see the steps of the page",
		pageReplace),
	"ServerUnreachable": about("the server of the share is away (ServerUnreachable)",
		"repair the server or the network", pageSMB+"#conditions"),
	"CredentialsRejected": about("the server rejects the credentials (CredentialsRejected)",
		"correct the Secret of the share", pageSMB+"#conditions"),
	"AccessDenied": about("the credentials have no rights on the share (AccessDenied)",
		"correct the rights on the server", pageSMB+"#conditions"),
	"ShareMissing": about("the server has no such share (ShareMissing)", "export the share again",
		pageSMB+"#conditions"),
	"DirectoryMissing": about("the directory of the volume is missing on the share (DirectoryMissing)",
		"restore the directory on the server", pageSMB+"#conditions"),
	"ShareFull": about("the share is full (ShareFull)", "delete files, or extend the filesystem of the share",
		pageSMB+"#conditions"),
}

// lookFirst is the remedy for a volume that its node does not know. The data may exist elsewhere.
const lookFirst = "look for the directory of the volume on the disks of the node and move it back, or bring the disk " +
	"back; only if the data is lost for good, replace the node, and then delete the claim, as on the page"

// quoted matches a name in the format %q, or the begin of a name in a text that was cut. The texts
// of the gRPC client in connection errors are not names.
var quoted = regexp.MustCompile(`(?s)(connection error: desc = )?"(?:[^"\\]|\\.)*("|\\?\z)`)

// unnamed returns a text without the quoted names in it.
func unnamed(text string) string {
	return quoted.ReplaceAllStringFunc(text, func(name string) string {
		if strings.HasPrefix(name, "connection error: ") {
			return name
		}
		return `""`
	})
}

// explain returns the first known message in a text.
func explain(text string, all []message) (message, bool) {
	for _, m := range all {
		if m.match.MatchString(text) {
			return m, true
		}
	}
	return message{}, false
}
