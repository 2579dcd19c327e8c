// Package peer is the private gRPC service that a node's driver offers its router beside CSI's: see
// peer.proto. The Go files are made of that by make generate, which needs protoc.
package peer

// AnswerKey is in the trailer of every answer that a handler on a node gave, an error too. The
// router takes an answer without it, such as the error of a connection that broke, for no answer at
// all.
const AnswerKey = "causeway-answer"

// WriteBuffer is how much a node collects before it sends, in bytes. TLS makes a record of it, and
// the router's keeps for each of its connections a buffer in which the longest one fits that it
// ever got.
const WriteBuffer = 1 << 10
