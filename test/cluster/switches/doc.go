// Package switches uses optional features of Kubernetes with the driver, in a cluster on this
// machine. The package has tests only: make test-switches. docs/how-to/kubernetes-features.md
// describes the features.
package switches
