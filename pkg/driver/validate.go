package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// What a legal request is. A backend gets to see only what passed here, and checks what depends on it alone.

const (
	maxString     = 128     // bytes of a string; CSI spec v1.13, size limits
	maxMountFlags = 4 << 10 // bytes of all mount flags together; CSI spec v1.13, VolumeCapability
)

// reservedPrefixes are those of keys that Kubernetes adds to parameters and contexts. They are accepted everywhere and
// mean nothing to a backend.
var reservedPrefixes = []string{"csi.storage.k8s.io/", "storage.kubernetes.io/"}

// ephemeralKey is "true" in the context of an inline volume, if the CSIDriver object says podInfoOnMount.
const ephemeralKey = "csi.storage.k8s.io/ephemeral"

// required returns an error for the first empty value. It takes what a value is called, and the value, in turn.
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

// The reserved keys that hold the namespace of a claim, a snapshot, a group snapshot or a pod. The
// sidecars send the first three with --extra-create-metadata, the kubelet sends the last with
// podInfoOnMount. Each is read from its own call only: the author of a pod can write any other key
// into the attributes of an inline volume.
const (
	claimNamespace    = "csi.storage.k8s.io/pvc/namespace"
	snapshotNamespace = "csi.storage.k8s.io/volumesnapshot/namespace"
	groupNamespace    = "csi.storage.k8s.io/volumegroupsnapshot/namespace"
	podNamespace      = "csi.storage.k8s.io/pod.namespace"
)

// maxNamespace is the length of the longest name of a namespace: RFC 1123, DNS label.
const maxNamespace = 63

// namespaceOf returns the namespace that the parameters or the volume context of a call have as key,
// or "".
func namespaceOf(m map[string]string, key string) string {
	if n := m[key]; len(n) <= maxNamespace {
		return n
	}
	return ""
}

// checkName returns an error for the name of a volume or a snapshot that the spec doesn't allow (CSI spec v1.13,
// CreateVolumeRequest.name and others).
func checkName(name string) error {
	if len(name) > maxString {
		return fmt.Errorf("%w: the name has %d bytes, over %d", backend.ErrInvalid, len(name), maxString)
	}
	for _, c := range name {
		if c < '\t' || c == '\v' || c == '\f' || (c > '\r' && c < ' ') || (c >= 0x7f && c <= 0x9f) {
			return fmt.Errorf("%w: the name has the control character %U", backend.ErrInvalid, c)
		}
	}
	return nil
}

// checkRange returns an error for a capacity range that no volume can have.
func checkRange(r *csi.CapacityRange) error {
	switch required, limit := r.GetRequiredBytes(), r.GetLimitBytes(); {
	case required < 0 || limit < 0:
		return fmt.Errorf("%w: a size is negative", backend.ErrInvalid)
	case limit > 0 && required > limit:
		return fmt.Errorf("%w: %d bytes are required and %d are the limit", backend.ErrOutOfRange, required, limit)
	}
	return nil
}

// createOptions turns a checked request into what a backend is asked for. Where the volume has to be is checked last: that
// error alone leads to another node.
func (c *controller) createOptions(req *csi.CreateVolumeRequest) (o backend.CreateOptions, err error) {
	o = backend.CreateOptions{
		Name:       req.GetName(),
		Required:   req.GetCapacityRange().GetRequiredBytes(),
		Limit:      req.GetCapacityRange().GetLimitBytes(),
		Parameters: ownKeys(req.GetParameters()),
		Secrets:    req.GetSecrets(),
		Namespace:  namespaceOf(req.GetParameters(), claimNamespace),
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
	uses, err := c.place.uses(req.GetVolumeCapabilities())
	if err != nil {
		return o, err
	}
	for _, u := range uses {
		o.Access = append(o.Access, u.Access)
	}
	return o, c.place.reachable(req.GetAccessibilityRequirements())
}

// use is a VolumeCapability that this driver understands.
type use struct {
	backend.Access
	mode csi.VolumeCapability_AccessMode_Mode
}

// uses reads capabilities, of which there must be one.
func (p *place) uses(capabilities []*csi.VolumeCapability) ([]use, error) {
	if len(capabilities) == 0 {
		return nil, fmt.Errorf("%w: the volume capabilities are missing", backend.ErrInvalid)
	}
	var uses []use
	for _, c := range capabilities {
		u, err := p.use(c)
		if err != nil {
			return nil, err
		}
		uses = append(uses, u)
	}
	return uses, nil
}

// use reads one capability.
func (p *place) use(c *csi.VolumeCapability) (use, error) {
	u := use{mode: c.GetAccessMode().GetMode()}
	switch c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		u.Block = true
	case *csi.VolumeCapability_Mount:
		u.FSType, u.Options = c.GetMount().GetFsType(), c.GetMount().GetMountFlags()
	default:
		return u, fmt.Errorf("%w: a volume capability says neither block nor mount", backend.ErrInvalid)
	}
	if c.GetMount().GetVolumeMountGroup() != "" {
		return u, fmt.Errorf("%w: the volume mount group is set, but this driver does not have VOLUME_MOUNT_GROUP", backend.ErrInvalid)
	}
	flags := 0
	for _, f := range u.Options {
		flags += len(f)
	}
	if flags > maxMountFlags {
		return u, fmt.Errorf("%w: the mount flags have %d bytes, over %d", backend.ErrInvalid, flags, maxMountFlags)
	}
	switch u.mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		u.ReadOnly = true
	}
	u.SharedWrite = u.manyNodes() && !u.ReadOnly
	return u, p.checkMode(u.mode)
}

// checkMode returns an error for an access mode that can't be kept.
func (p *place) checkMode(mode csi.VolumeCapability_AccessMode_Mode) error {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if !p.local {
			return nil
		}
		return fmt.Errorf("%w: invalid access mode %s: must be SINGLE_NODE_…, because the volume is on the storage of one node", backend.ErrInvalid, mode)
	}
	return fmt.Errorf("%w: unknown access mode %d", backend.ErrInvalid, mode)
}

// oneTarget reports whether the volume may be published at one target path only. CSI spec v1.13, NodePublishVolume.
func (u use) oneTarget() bool {
	switch u.mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return true
	}
	return false
}

// manyNodes reports whether the volume may be used on more than one node at the same time.
func (u use) manyNodes() bool {
	switch u.mode {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return true
	}
	return false
}

// digest stands for a capability: two are the same exactly if their digests are. It doesn't show mount flags, which
// may be secret.
type digest [16]byte

func (u use) digest() digest {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %t %q %q", u.mode, u.Block, u.FSType, u.Options))
	return digest(sum[:])
}

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText and UnmarshalText make it hexadecimal digits in a file.
func (d digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

func (d *digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return hex.ErrLength
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// place is where volumes can be used: on one node, or anywhere.
type place struct {
	local bool
	key   string // topology key, "" if anywhere
	value string

	topology *csi.Topology // the same, as CSI has it; nil if anywhere. One for all answers: it never changes
}

func newPlace(cfg Config) *place {
	local, ok := cfg.Backend.(backend.NodeLocal)
	if !ok {
		return &place{}
	}
	p := &place{local: true, key: TopologyKey(cfg.Name), value: volumeid.Segment(local.Node())}
	p.topology = &csi.Topology{Segments: map[string]string{p.key: p.value}}
	return p
}

// within reports whether t includes this place. A key that isn't ours excludes it.
func (p *place) within(t *csi.Topology) bool {
	for key, value := range t.GetSegments() {
		if p.local && (key != p.key || value != p.value) {
			return false
		}
	}
	return true
}

// reachable returns ErrExhausted if nothing here meets the requirement: another node's driver may meet it. What is
// preferred doesn't count: where the source of a volume is, there the volume is.
func (p *place) reachable(r *csi.TopologyRequirement) error {
	if len(r.GetRequisite()) == 0 || slices.ContainsFunc(r.GetRequisite(), p.within) {
		return nil
	}
	return fmt.Errorf("%w: no requisite topology includes %s=%s", backend.ErrExhausted, p.key, p.value)
}

// inlineOptions reads the attributes of an inline volume, which the author of the pod wrote.
func inlineOptions(context map[string]string, u use) (backend.CreateOptions, error) {
	o := backend.CreateOptions{Parameters: ownKeys(context), Access: []backend.Access{u.Access}, Namespace: namespaceOf(context, podNamespace)}
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

// attachOptions turns a checked request into what a backend is asked for.
func (p *place) attachOptions(req *csi.ControllerPublishVolumeRequest) (backend.AttachOptions, error) {
	if err := required("volume ID", req.GetVolumeId(), "node ID", req.GetNodeId()); err != nil {
		return backend.AttachOptions{}, err
	}
	u, err := p.use(req.GetVolumeCapability())
	if err != nil {
		return backend.AttachOptions{}, err
	}
	u.ReadOnly = u.ReadOnly || req.GetReadonly()
	u.Context, u.Secrets = ownKeys(req.GetVolumeContext()), req.GetSecrets()
	return backend.AttachOptions{
		Node: req.GetNodeId(), Access: u.Access, Capability: u.digest().String(), ManyNodes: u.manyNodes(),
		OneWriter: u.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
	}, nil
}
