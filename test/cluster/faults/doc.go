// Package faults breaks a real cluster on this machine, in the ways that docs/node-local-storage.md and docs/troubleshooting.md
// speak of, and looks at what becomes of the data. It has tests only: make test-cluster.
package faults
