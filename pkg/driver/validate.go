package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// This file defines legal requests. A backend gets only requests that passed these checks, and
// checks only the values that depend on itself.

const (
	maxString     = 128     // bytes of a string; CSI spec v1.13, size limits
	maxMountFlags = 4 << 10 // bytes of all mount flags together; CSI spec v1.13, VolumeCapability
)

// reservedPrefixes are the prefixes of keys that Kubernetes adds to parameters and contexts. The
// driver accepts such keys in every request, and does not pass them to a backend.
var reservedPrefixes = []string{"csi.storage.k8s.io/", "storage.kubernetes.io/"}

// ephemeralKey has the value "true" in the volume context of an inline volume, if podInfoOnMount is
// set in the CSIDriver object.
const ephemeralKey = "csi.storage.k8s.io/ephemeral"

// required returns an error for the first empty value. Its arguments are pairs: the name of a
// value, and the value.
func required(nameAndValue ...string) error {
	for i := 0; i < len(nameAndValue); i += 2 {
		if nameAndValue[i+1] == "" {
			return fmt.Errorf("%w: the %s is missing", backend.ErrInvalid, nameAndValue[i])
		}
	}
	return nil
}

// ownKeys returns m without the keys that Kubernetes reserves.
func ownKeys(m map[string]string) map[string]string {
	own := map[string]string{}
	for k, v := range m {
		if !slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(k, p) }) {
			own[k] = v
		}
	}
	return own
}

// Reserved keys that hold the names of a claim, and the namespace of a snapshot, a group snapshot
// or a pod. The sidecars send all but the last with --extra-create-metadata, the kubelet sends the
// last with podInfoOnMount. Each key is read from its own call only: the author of a pod can write
// any other key into the attributes of an inline volume.
const (
	claimNamespace    = "csi.storage.k8s.io/pvc/namespace"
	claimName         = "csi.storage.k8s.io/pvc/name"
	claimVolume       = "csi.storage.k8s.io/pv/name"
	snapshotNamespace = "csi.storage.k8s.io/volumesnapshot/namespace"
	groupNamespace    = "csi.storage.k8s.io/volumegroupsnapshot/namespace"
	podNamespace      = "csi.storage.k8s.io/pod.namespace"
)

// fsTypeKey is the reserved key of the filesystem type in the parameters of a class.
const fsTypeKey = "csi.storage.k8s.io/fstype"

// maxNamespace is the maximum length of the name of a namespace: RFC 1123, DNS label.
const maxNamespace = 63

// namespaceOf returns the namespace that m, the parameters or the volume context of a call, has as
// key. The result is "" if m does not have the key, or the value is too long.
func namespaceOf(m map[string]string, key string) string {
	if n := m[key]; len(n) <= maxNamespace {
		return n
	}
	return ""
}

// claimOf returns the claim that the parameters of a CreateVolumeRequest name. A name that no
// object of Kubernetes can have is "".
func claimOf(parameters map[string]string) backend.Claim {
	name := func(key string) string {
		if n := parameters[key]; len(n) <= maxObjectName && objectName.MatchString(n) {
			return n
		}
		return ""
	}
	return backend.Claim{Namespace: name(claimNamespace), Name: name(claimName), Volume: name(claimVolume)}
}

// maxObjectName is the maximum length of the name of an object: RFC 1123, DNS subdomain.
const maxObjectName = 253

// objectName matches DNS subdomains.
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// checkName returns an error for a name of a volume or snapshot that the spec does not allow (CSI
// spec v1.13, CreateVolumeRequest.name and others).
func checkName(name string) error {
	if len(name) > maxString {
		return fmt.Errorf("%w: the name has %d bytes, must have at most %d", backend.ErrInvalid, len(name), maxString)
	}
	for _, c := range name {
		if c < '\t' || c == '\v' || c == '\f' || (c > '\r' && c < ' ') || (c >= 0x7f && c <= 0x9f) {
			return fmt.Errorf("%w: the name contains the control character %U", backend.ErrInvalid, c)
		}
	}
	return nil
}

// checkRange returns an error for a capacity range that no volume can meet.
func checkRange(r *csi.CapacityRange) error {
	switch required, limit := r.GetRequiredBytes(), r.GetLimitBytes(); {
	case required < 0 || limit < 0:
		return fmt.Errorf("%w: the capacity range has a negative size", backend.ErrInvalid)
	case limit > 0 && required > limit:
		return fmt.Errorf("%w: %d bytes are required, but the limit is %d", backend.ErrOutOfRange, required, limit)
	}
	return nil
}

// createOptions checks a request and returns the options for the backend. The check of the topology
// comes last: of all these errors, only the error of the topology makes the CO try another node.
func (c *controller) createOptions(req *csi.CreateVolumeRequest) (o backend.CreateOptions, err error) {
	o = backend.CreateOptions{
		Name:       req.GetName(),
		Required:   req.GetCapacityRange().GetRequiredBytes(),
		Limit:      req.GetCapacityRange().GetLimitBytes(),
		Parameters: ownKeys(req.GetParameters()),
		Secrets:    req.GetSecrets(),
		Namespace:  namespaceOf(req.GetParameters(), claimNamespace),
		Claim:      claimOf(req.GetParameters()),
	}
	if err := required("name", req.GetName()); err != nil {
		return o, err
	}
	if err := checkName(req.GetName()); err != nil {
		return o, err
	}
	if err := checkRange(req.GetCapacityRange()); err != nil {
		return o, err
	}
	if o.Mutable, err = mutable(c.backend, req.GetMutableParameters()); err != nil {
		return o, err
	}
	parsed, err := c.topology.parseCapabilities(req.GetVolumeCapabilities())
	if err != nil {
		return o, err
	}
	for _, vc := range parsed {
		o.Access = append(o.Access, vc.Access)
	}
	return o, c.topology.reachable(req.GetAccessibilityRequirements())
}

// volumeCapability is a VolumeCapability that this driver supports.
type volumeCapability struct {
	backend.Access
	mode  csi.VolumeCapability_AccessMode_Mode
	group string // volume mount group, a decimal number; "": none
}

// parseCapabilities checks and converts volume capabilities. At least one is required.
func (t *topology) parseCapabilities(capabilities []*csi.VolumeCapability) ([]volumeCapability, error) {
	if len(capabilities) == 0 {
		return nil, fmt.Errorf("%w: the volume capabilities are missing", backend.ErrInvalid)
	}
	var parsed []volumeCapability
	for _, c := range capabilities {
		vc, err := t.parseCapability(c)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, vc)
	}
	return parsed, nil
}

// parseCapability checks and converts a volume capability.
func (t *topology) parseCapability(c *csi.VolumeCapability) (volumeCapability, error) {
	vc := volumeCapability{mode: c.GetAccessMode().GetMode()}
	switch c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		vc.Block = true
	case *csi.VolumeCapability_Mount:
		vc.FSType, vc.Options = c.GetMount().GetFsType(), c.GetMount().GetMountFlags()
	default:
		return vc, fmt.Errorf("%w: a volume capability has neither block nor mount", backend.ErrInvalid)
	}
	if err := t.parseGroup(c.GetMount().GetVolumeMountGroup(), &vc); err != nil {
		return vc, err
	}
	flags := 0
	for _, f := range vc.Options {
		flags += len(f)
	}
	if flags > maxMountFlags {
		return vc, fmt.Errorf("%w: the mount flags have %d bytes, must have at most %d", backend.ErrInvalid, flags,
			maxMountFlags)
	}
	vc.ReadOnly = vc.readOnlyMode()
	vc.SharedWrite = vc.manyNodes() && !vc.ReadOnly
	return vc, t.checkMode(vc.mode)
}

// parseGroup sets the volume mount group of vc.
func (t *topology) parseGroup(group string, vc *volumeCapability) error {
	if group == "" {
		return nil
	}
	if !t.groups {
		return fmt.Errorf("%w: the volume mount group is set, but this driver does not have VOLUME_MOUNT_GROUP",
			backend.ErrInvalid)
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil || gid == math.MaxUint32 {
		return fmt.Errorf("%w: invalid volume mount group %.32q: must be a group ID below %d", backend.ErrInvalid,
			group, uint32(math.MaxUint32))
	}
	vc.group = strconv.FormatUint(gid, 10)
	return nil
}

// checkMode returns an error for an access mode that the topology cannot provide.
func (t *topology) checkMode(mode csi.VolumeCapability_AccessMode_Mode) error {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if !t.local {
			return nil
		}
		return fmt.Errorf("%w: invalid access mode %s: must be SINGLE_NODE_…, because the volume is on the storage "+
			"of one node", backend.ErrInvalid, mode)
	}
	return fmt.Errorf("%w: unknown access mode %d", backend.ErrInvalid, mode)
}

// oneTarget reports whether the volume may be published at a single target path only. CSI spec
// v1.13, NodePublishVolume.
func (vc volumeCapability) oneTarget() bool {
	switch vc.mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return true
	}
	return false
}

// readOnlyMode reports whether the access mode permits no writing.
func (vc volumeCapability) readOnlyMode() bool {
	return vc.mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		vc.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// manyNodes reports whether the volume may be used on more than one node at the same time.
func (vc volumeCapability) manyNodes() bool {
	switch vc.mode {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return true
	}
	return false
}

// digest identifies a capability: two capabilities are equal exactly if their digests are equal. A
// digest does not reveal mount flags, which may be secret.
type digest [16]byte

func (vc volumeCapability) digest() digest {
	text := fmt.Appendf(nil, "%d %t %q %q", vc.mode, vc.Block, vc.FSType, vc.Options)
	if vc.group != "" { // records of earlier releases have no group
		text = append(text, " "+vc.group...)
	}
	sum := sha256.Sum256(text)
	return digest(sum[:])
}

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText and UnmarshalText convert a digest to and from hexadecimal digits.
func (d digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

func (d *digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return hex.ErrLength
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// topology is where volumes can be used: on one node, or on all.
type topology struct {
	groups bool // the backend is a Grouper
	local  bool
	key    string // topology key; "" if not local
	value  string
	// segments are those of the node; nil if not local.
	segments map[string]string

	// volume is the topology of a volume in CSI, which has the segment of its node only. node is
	// that of the node and its snapshots. Both are nil if not local. All responses share them,
	// which are immutable.
	volume, node *csi.Topology
}

func newTopology(cfg Config) *topology {
	local, ok := cfg.Backend.(backend.NodeLocal)
	groups := is[backend.Grouper](cfg.Backend)
	if !ok {
		return &topology{groups: groups}
	}
	t := &topology{groups: groups, local: true, key: TopologyKey(cfg.Name), value: volumeid.Segment(local.Node())}
	t.volume = &csi.Topology{Segments: map[string]string{t.key: t.value}}
	t.segments = map[string]string{t.key: t.value, SystemKey(cfg.Name): operatingSystem}
	t.node = &csi.Topology{Segments: t.segments}
	return t
}

// within reports whether this node is within requested. A key of another driver excludes it.
func (t *topology) within(requested *csi.Topology) bool {
	for key, value := range requested.GetSegments() {
		if own, ok := t.segments[key]; t.local && (!ok || own != value) {
			return false
		}
	}
	return true
}

// reachable returns ErrExhausted if this topology does not meet the requirement; the driver on
// another node may meet it. Preferred topologies are ignored: the volume is on the node of this
// driver.
func (t *topology) reachable(r *csi.TopologyRequirement) error {
	if len(r.GetRequisite()) == 0 || slices.ContainsFunc(r.GetRequisite(), t.within) {
		return nil
	}
	return fmt.Errorf("%w: no requisite topology includes %s=%s", backend.ErrExhausted, t.key, t.value)
}

// inlineOptions converts the attributes of an inline volume, which the author of the pod wrote.
func inlineOptions(context map[string]string, vc volumeCapability) (backend.CreateOptions, error) {
	o := backend.CreateOptions{Parameters: ownKeys(context), Access: []backend.Access{vc.Access},
		Namespace: namespaceOf(context, podNamespace)}
	if size, ok := o.Parameters["size"]; ok {
		delete(o.Parameters, "size")
		bytes, err := backend.ParseSize(size)
		if err != nil {
			return o, err
		}
		o.Required = bytes
	}
	return o, nil
}

// attachOptions checks a request and returns the options for the backend.
func (t *topology) attachOptions(req *csi.ControllerPublishVolumeRequest) (backend.AttachOptions, error) {
	if err := required("volume ID", req.GetVolumeId(), "node ID", req.GetNodeId()); err != nil {
		return backend.AttachOptions{}, err
	}
	vc, err := t.parseCapability(req.GetVolumeCapability())
	if err != nil {
		return backend.AttachOptions{}, err
	}
	vc.ReadOnly = vc.ReadOnly || req.GetReadonly()
	vc.Context, vc.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
	return backend.AttachOptions{
		Node: req.GetNodeId(), Access: vc.Access, Capability: vc.digest().String(), ManyNodes: vc.manyNodes(),
		OneWriter: vc.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
	}, nil
}
