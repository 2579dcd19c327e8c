// Package volumeid makes and reads the IDs of volumes and snapshots whose storage lives on one node, and the names
// under which that node is known to the cluster.
//
// An ID is a letter, a digest of the node and a digest of the name, 57 characters of [0-9a-v] in all. So a retried
// CreateVolume finds its own volume without an index, anyone who holds an ID can tell its node, and no ID can be
// mistaken for a path. The volumeHandle of a PersistentVolume never changes, so neither may the
// meaning of a letter: a new form of ID takes a new letter.
package volumeid

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Kind is what an ID is of: the letter that it starts with.
type Kind byte

const (
	Volume   Kind = 'a' // made by CreateVolume
	Inline   Kind = 'i' // the storage of an inline ephemeral volume
	Snapshot Kind = 's'
	Group    Kind = 'g' // of snapshots
)

// Len is how many bytes every ID has.
const Len = 1 + nodeLen + nameLen

const (
	nodeLen = 16 // characters of 5 bits: 80 bits of the digest of the node
	nameLen = 40 // 200 bits of the digest of the name

	maxNodeName = 253 // a DNS subdomain, RFC 1123
	maxNodeID   = 128 // CSI spec v1.13, size limits
	maxSegment  = 63  // CSI spec v1.13, Topology

	longPrefix = "node-" // of the digest that stands for a name
)

// SeveralNodes stands for the node of a group whose members are on several: no node is called so.
const SeveralNodes = ""

// ErrMalformed says that a string is not an ID of any known form.
var ErrMalformed = errors.New("malformed ID")

var (
	encoding = base32.HexEncoding.WithPadding(base32.NoPadding)
	segment  = regexp.MustCompile(`^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// ID is what an ID says.
type ID struct {
	Kind Kind
	Node string // digest of the node that holds it, as NodeDigest returns it
	Name string // digest of the name that it was made from, as NameDigest returns it
}

// New returns the ID of what is made under name on node: for a Volume, Snapshot or Group the name in the request; for
// an Inline one, whose ID is in no PersistentVolume, what the kubelet calls the volume. It is always the same.
func New(k Kind, node, name string) string {
	return string(k) + digest(node, nodeLen) + digest(name, nameLen)
}

// Parse reads an ID. Whatever New can't have made is ErrMalformed.
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

// isDigit reports whether c can be in an ID.
func isDigit(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'v' }

// NameDigest returns the part of an ID that stands for the name that New got.
func NameDigest(name string) string { return digest(name, nameLen) }

// NodeDigest returns the part of an ID that stands for node.
func NodeDigest(node string) string { return digest(node, nodeLen) }

// NodeDigests returns what may stand in an ID for the node that NodeID calls id: its digest; two, where id may be that of
// a node with that very name, or of one whose name is too long.
func NodeDigests(id string) []string {
	digests := []string{NodeDigest(id)}
	if d, ok := strings.CutPrefix(id, longPrefix); ok && len(d) == nodeLen {
		digests = append(digests, d)
	}
	return digests
}

// CheckNode returns an error for a node name that no cluster can have: empty, over 253 bytes, or with characters
// that are neither printable ASCII nor part of a name.
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

// NodeID returns what NodeGetInfo calls node: its name, or a digest where the name is over 128 bytes.
func NodeID(node string) string {
	if len(node) <= maxNodeID {
		return node
	}
	return longPrefix + NodeDigest(node)
}

// Segment returns node as the value of a topology key: its name where that is a legal value, else a digest.
// CSI spec v1.13, Topology: at most 63 characters, the first and the last alphanumeric.
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
