// Package peer is the private gRPC service that a node's driver offers its router beside CSI's: see peer.proto. The Go
// files are made of that by make generate, which needs protoc.
package peer
