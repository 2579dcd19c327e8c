// Package volumeid makes and parses the IDs of volumes and snapshots on a node, and the names of
// that node in CSI.
//
// An ID is a letter, a digest of the node and a digest of the name: 57 characters of [0-9a-v]. So a
// repeated CreateVolume finds its volume without an index, an ID tells its node, and no ID is a
// path. The volumeHandle of a PersistentVolume never changes, so the meaning of a letter never
// changes: a new form of ID takes a new letter.
package volumeid

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Kind is the kind of an object: the first letter of its ID.
type Kind byte

// Kinds of objects.
const (
	Volume   Kind = 'a' // made by CreateVolume
	Inline   Kind = 'i' // the storage of an inline ephemeral volume
	Snapshot Kind = 's'
	Group    Kind = 'g' // a group snapshot
)

// Len is the length of every ID in bytes.
const Len = 1 + nodeLen + nameLen

const (
	nodeLen = 16 // characters of 5 bits: 80 bits of the digest of the node
	nameLen = 40 // 200 bits of the digest of the name

	maxNodeName = 253 // a DNS subdomain, RFC 1123
	maxNodeID   = 128 // CSI spec v1.13, size limits
	maxSegment  = 63  // CSI spec v1.13, Topology

	longPrefix = "node-" // of the digest that stands for a name
)

// SeveralNodes takes the place of the node in the ID of a group snapshot over several nodes. No
// node has this name.
const SeveralNodes = ""

// ErrMalformed reports that a string is not an ID of a known form.
var ErrMalformed = errors.New("malformed ID")

var (
	encoding = base32.HexEncoding.WithPadding(base32.NoPadding)
	segment  = regexp.MustCompile(`^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// ID is a parsed ID.
type ID struct {
	Kind Kind
	Node string // digest of the node that holds it, as NodeDigest returns it
	Name string // digest of the name, as NameDigest returns it
}

// New returns the ID of an object on node. name is the name in the request; for Inline, whose ID is
// in no PersistentVolume, the volume ID of the kubelet. Equal arguments give equal IDs.
func New(k Kind, node, name string) string {
	return string(k) + digest(node, nodeLen) + digest(name, nameLen)
}

// Parse parses an ID. Errors: ErrMalformed for a string that New cannot return.
func Parse(s string) (ID, error) {
	if len(s) != Len {
		return ID{}, ErrMalformed
	}
	id := ID{Kind: Kind(s[0]), Node: s[1 : 1+nodeLen], Name: s[1+nodeLen:]}
	switch id.Kind {
	case Volume, Inline, Snapshot, Group:
	default:
		return ID{}, ErrMalformed
	}
	for _, c := range []byte(s[1:]) {
		if !isDigit(c) {
			return ID{}, ErrMalformed
		}
	}
	return id, nil
}

// Cut splits an ID of central storage into the ID that New returned and the address after the first
// @. found reports whether s has an address. An address tells a backend where the volume is, and
// does not distinguish volumes.
func Cut(s string) (id, address string, found bool) { return strings.Cut(s, "@") }

// isDigit reports whether an ID can have the character c.
func isDigit(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'v' }

// NameDigest returns the digest of a name in IDs.
func NameDigest(name string) string { return digest(name, nameLen) }

// NodeDigest returns the digest of a node name in IDs.
func NodeDigest(node string) string { return digest(node, nodeLen) }

// NodeDigests returns the possible digests in IDs of the node whose NodeID is id. There are two if
// id may be the name of the node or the digest of a long name.
func NodeDigests(id string) []string {
	digests := []string{NodeDigest(id)}
	if d, ok := strings.CutPrefix(id, longPrefix); ok && len(d) == nodeLen {
		digests = append(digests, d)
	}
	return digests
}

// CheckNode returns an error for an invalid node name: empty, over 253 bytes, or with characters
// that no node name has.
func CheckNode(node string) error {
	if node == "" || len(node) > maxNodeName {
		return fmt.Errorf("a node name has 1 to %d bytes, this one has %d", maxNodeName, len(node))
	}
	for _, c := range []byte(node) {
		if c <= ' ' || c > '~' || c == '/' {
			return fmt.Errorf("a node name has no character like %q", c)
		}
	}
	return nil
}

// NodeID returns the node ID of NodeGetInfo: the name of the node, or a digest of a name over 128
// bytes.
func NodeID(node string) string {
	if len(node) <= maxNodeID {
		return node
	}
	return longPrefix + NodeDigest(node)
}

// Segment returns the value of the topology key for node: its name if that is a legal value, else a
// digest. CSI spec v1.13, Topology: at most 63 characters, the first and the last alphanumeric.
func Segment(node string) string {
	if len(node) <= maxSegment && segment.MatchString(node) {
		return node
	}
	return longPrefix + NodeDigest(node)
}

func digest(s string, length int) string {
	sum := sha256.Sum256([]byte(s))
	var text [52]byte // 32 bytes at 5 bits a character
	encoding.Encode(text[:], sum[:])
	for i, c := range text[:length] {
		if c >= 'A' {
			text[i] = c + 'a' - 'A'
		}
	}
	return string(text[:length])
}
