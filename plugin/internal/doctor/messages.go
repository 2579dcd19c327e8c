package doctor

import (
	"cmp"
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

// listed is a message with the cause and the remedy of a row: see rows. The page is that of the
// row, or another that has the remedy.
func listed(pattern, key string, page ...string) message {
	m := messageOf(key)
	m.match, m.page = regexp.MustCompile(pattern), cmp.Or(append(page, m.page)...)
	return m
}

// ofShare is a message that has this cause only if it is about a share.
func ofShare(pattern, key string) message {
	m := listed(pattern, key)
	m.smb = true
	return m
}

// finding returns a finding with the cause and the remedy of a message.
func (m message) finding(severity Severity, object, evidence string) Finding {
	return Finding{Severity: severity, Object: object, Cause: m.cause, Evidence: evidence, Remedy: m.remedy, Page: m.page}
}

// known is a message that no row has.
func known(pattern, cause, remedy, page string) message {
	return message{match: regexp.MustCompile(pattern), cause: cause, remedy: remedy, page: page}
}

// driverMessages are the reasons of /readyz and the last words of a driver that ended. The first
// match counts.
var driverMessages = append(messagesIn("The driver does not start", "The driver is not ready"),
	known(`flag provided but not defined|invalid value|has no effect with|invalid --|is not a flag`,
		"the driver does not accept its command line", "correct extraArgs, or run images of the chart's release", pageInstall))

// sidecarMessages are those of csi-sidecars and csi-sidecars-node.
var sidecarMessages = []message{
	listed(`permission denied`, "The sidecars are not ready: `Cannot open the driver's socket … permission denied`, "+
		"`dial unix …: connect: permission denied`"),
	listed(`[Cc]annot register the driver|registration`,
		"The sidecars are not ready: `Cannot register the driver`, `the registration socket …`"),
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
	listed(`^code = FailedPrecondition desc = .*(holds a lease|too deep|are being moved)`,
		inCopies+"FAILED_PRECONDITION, `holds a lease`, `too deep`, `are being moved`", pageConsistency),
	listed(`^code = FailedPrecondition desc = .*(takes for one name|may be the alias|and does not find it|`+
		`levels of directories|is a link of the server)`,
		inCopies+"FAILED_PRECONDITION, `takes for one name`, `may be the alias`, `does not find it`, `levels of directories`, "+
			"`is a link of the server`",
		pageSMB+"#snapshots-and-clones"),
	listed(`^code = FailedPrecondition desc = .*(no progress for|an earlier copy still hangs|copies hang in)`,
		inCopies+"FAILED_PRECONDITION, `no progress for 1m0s at …`"),
	listed(fromRouter+`none of the \d+ nodes is in any topology that the volume may have`,
		inClaims+"RESOURCE_EXHAUSTED, `none of the N nodes is in any topology that the volume may have`"),
	listed(fromRouter+`none of the \d+ nodes is in `, inRouter+"`none of the N nodes is in …`"),
	listed(fromRouter+partial+`((not all nodes answer: )(.*; )?)?several addresses report (the same|this) node: `, twoAddresses),
	listed(fromRouter+partial+`the nodes are not known yet`, inRouter+"`the nodes are not known yet: …`"),
	listed(fromRouter+`none of the \d+ nodes holds it, and all of them answer`,
		inRouter+"`none of the N nodes holds it, and all of them answer`"),
	listed(fromRouter+`(no node that answers holds it: |node [^"]* does not answer|not all nodes answer|`+
		`no node answers|no node has answered)`, inRouter+"`node … does not answer: …`"),
	listed(`^code = Unavailable desc = .*(refused our certificate|wrong CA|has expired|it refused us|`+
		`is not valid before)`, inRouter+"`refused our certificate`, `wrong CA`, `has expired`, …", pageCerts),
	listed(`is unusable: damaged record`, "Errors of any call: INTERNAL, `is unusable: damaged record`", pageVolume),
	listed(`the path of the data is obstructed`, inPods+"FAILED_PRECONDITION, `the path of the data is obstructed`"),
	listed(`cannot mount the data of volume.*no such file or directory|is missing: restore it from a backup`,
		"Conditions of a volume: `DataMissing`"),
	known(`invalid filesystem type`, "the filesystem type of the class is not possible",
		"delete the class and make it again with another csi.storage.k8s.io/fstype: a pending claim is retried; a "+
			"bound claim keeps the type of its PersistentVolume, so make a new claim: to delete the old claim deletes "+
			"its data, if the volume has some", ""),
	listed(`invalid path: .* is not below`, inPods+"INVALID_ARGUMENT, `is not below`"),
	listed(`filesystem check not completed`, inPods+"UNAVAILABLE, `filesystem check not completed`"),
	listed(`not the filesystem expected`, inPods+"INTERNAL, `not the filesystem expected`"),
	listed(`^code = Internal desc = .*write the staging record in`, inPods+"INTERNAL, `write the staging record in …`"),
	listed(`write the staging record in`, inPods+"UNAVAILABLE, `write the staging record in …`"),
	listed(`cannot copy it at a point in time`, inCopies+"FAILED_PRECONDITION, `cannot copy it at a point in time`"),
	listed(`has no directory \.causeway/work`, inClaims+"FAILED_PRECONDITION, `the source has no directory .causeway/work`"),
	listed(`is in the directory of volume|is the source of other volumes`,
		inClaims+"FAILED_PRECONDITION, `is in the directory of volume`, `is the source of other volumes`"),
	listed(`directories of two volumes overlap`, inClaims+"FAILED_PRECONDITION, `the directories of two volumes overlap`"),
	listed(`no record of this source names it`, inClaims+"FAILED_PRECONDITION, `no record of this source names it`"),
	listed(`code = FailedPrecondition desc = .*is attached to /dev/loop`,
		"A volume or a snapshot is not deleted: FAILED_PRECONDITION, `is attached to /dev/loop…`"),
	listed(`another client has files of .* open`,
		"A volume or a snapshot is not deleted: FAILED_PRECONDITION or PERMISSION_DENIED, `has files of … open`"),
	listed(`code = \w+ desc = .*is mounted at|code = FailedPrecondition.* mounted at`,
		"A volume or a snapshot is not deleted: FAILED_PRECONDITION"),
	listed(`is unusable: record of a newer version`, "Conditions of a volume: `RecordOfNewerVersion`"),
	listed(`no credentials for`, inClaims+"UNAUTHENTICATED, `no credentials for`"),
	ofShare(`^code = (Unauthenticated|PermissionDenied)|NT_STATUS_LOGON_FAILURE|NT_STATUS_ACCESS_DENIED`,
		inPods+"UNAUTHENTICATED, PERMISSION_DENIED"),
	ofShare(`multiple connections to a server|a session with this server exists, of another user|`+
		`\bmapp(ed|ing)\b.*\b1219\b`,
		"Windows nodes: 1219, `multiple connections to a server`; FAILED_PRECONDITION about a second user"),
	ofShare(`the server (or the network )?does not answer|connection refused|no such host`,
		inClaims+"UNAVAILABLE, `the server does not answer`, `connection refused`, `connection error`, `no such host`"),
	listed(`the kernel cannot mount SMB shares`, inPods+"UNIMPLEMENTED, `the kernel cannot mount SMB shares`"),
	listed(`too many helper processes`, "Errors of any call: UNAVAILABLE, `too many helper processes`"),
	tooFewFiles,
	listed(`a device does not answer`, inPods+"UNAVAILABLE, `a device does not answer: /dev/loop…`"),
}

// Sections of the page, and rows of which there is a metric, too.
const (
	inClaims     = "A claim stays Pending: "
	inPods       = "A pod does not start: "
	inCopies     = "A snapshot or a clone fails: "
	inRouter     = "Errors of the router: "
	twoAddresses = inRouter + "`several addresses report the same node: …`, `several addresses report this node: …`"
	noDNS        = inRouter + "`the lookup of the nodes' addresses failed; the known addresses stay in use`, `causeway_router_discovery_up 0`"
)

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
	listed(`^code = ResourceExhausted|no space left`, inClaims+"RESOURCE_EXHAUSTED"),
	known(`is being copied|^code = Aborted`, "another call for the same volume is running for long", "wait; if it stays, see the page", pageSnapshot),
	known(`^code = FailedPrecondition`, "the state of the volume does not permit the call", "see the message on the page", pagePodStart),
	known(`^code = NotFound`, "an object that the call needs does not exist",
		"see the message and the page; delete nothing before you know that the data is lost", ""),
	known(`^code = DataLoss`, "data of the volume is lost", "restore it from a backup", pageVolume),
	notRegistered,
	listed(`match PersistentVolume's node affinity|volume node affinity conflict`,
		inPods+"no code, `node(s) didn't match PersistentVolume's node affinity`"),
	listed(`FailedScheduling|did not have enough free storage|node\(s\)`, inClaims+"no code, `node(s) did not have enough "+
		"free storage` at the pod, and `waiting for pod … to be scheduled` at the claim"),
	known(`^code = (Unavailable|DeadlineExceeded|Internal|Unknown)`, "the driver cannot serve the call now", "see the log of the driver", pageAnyCall),
}

// tooFewFiles is the error of a driver that runs, and cannot open files.
var tooFewFiles = listed(`too many open files|cannot allocate memory`,
	"Errors of any call: UNAVAILABLE, `too many open files`, `cannot allocate memory`")

// notRegistered is the error of a kubelet, and of the provisioner about a node, that do not know
// the driver.
var notRegistered = listed(`not found in the list of registered CSI drivers|^error generating accessibility requirements: no topology key found for node `,
	inPods+"no code, `not found in the list of registered CSI drivers`", pageSidecars)

// missingVolume is the error NotFound of a pod: its volume is not on its node.
var missingVolume = listed(`^code = NotFound`, inPods+"NOT_FOUND", pageReplace)

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
		"see the message; for an inline volume correct the pod; a PersistentVolume keeps the values of its class: make "+
			"another class with the right value and a new claim of it, and copy the data if the volume has some: to "+
			"delete the old claim deletes its data", "")
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
var growsLater = listed(`without CAP_SYS_RESOURCE it can be grown only when it is staged again`,
	"A volume does not grow or change: FAILED_PRECONDITION, `in use: without CAP_SYS_RESOURCE it can be grown only when it is staged again`")

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
