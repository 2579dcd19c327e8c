// Package faults breaks a real cluster on this machine, in the ways that docs/explanation/router.md and docs/how-to/troubleshooting.md
// speak of, and looks at what becomes of the data. It has tests only: make test-cluster.
package faults
