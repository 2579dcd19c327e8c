// Package worker copies to or from one container, as the identity of the container. A worker is a
// process of its own: the agent starts it in a sibling of the user namespace, with the same maps,
// with the user of the container, and with an empty root. The worker has three descriptors: the
// root directory of the container, a packet socket to the agent, and proc.
//
// The worker trusts neither the container nor the client. It reaches files through descriptors
// below the root of the container only (package archive), as a user who has no right that the
// container has not. A worker ends when the socket is closed: its unfinished copy is removed then.
package worker

import (
	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/place"
)

// Descriptors of a worker.
const (
	RootFD   = 3 // the root directory of the container, O_PATH
	SocketFD = 4 // SOCK_SEQPACKET; the first packet is a Spec as JSON, all others are of package wire
	ProcFD   = 5 // the root of a proc, O_PATH; closed at the start
)

// Spec describes a copy.
type Spec struct {
	From   bool   `json:"from"` // from the container
	Path   string `json:"path"` // absolute, in the container
	Limits archive.Limits
	SHA256 bool `json:"sha256,omitempty"` // also compute a SHA-256 of the stream

	// Precompute: a copy from the container reads everything once for its Sum message, and again
	// for the stream after a Start message. A stream with another sum is an error.
	Precompute bool `json:"precompute,omitempty"`

	// Of a copy to the container.
	Contents  bool            `json:"contents,omitempty"` // see place.Source
	Overwrite place.Overwrite `json:"overwrite,omitempty"`
	Mode      bool            `json:"mode,omitempty"` // see archive.UnpackOptions
	Times     bool            `json:"times,omitempty"`
	Owner     bool            `json:"owner,omitempty"`
	Declared  *archive.Sum    `json:"declared,omitempty"` // before the stream; nil: in its End message only

	// Of the container.
	Capabilities uint64 `json:"capabilities,omitempty"` // the effective set of its first process, as bits
	Umask        int    `json:"umask"`
	Label        string `json:"label,omitempty"` // SELinux context of new files
}
