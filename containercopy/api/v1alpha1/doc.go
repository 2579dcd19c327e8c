// Package v1alpha1 has the calls to the agent of a node: KEP-4582 and additions. ../../generate
// makes the Go files of copy.proto.
package v1alpha1
