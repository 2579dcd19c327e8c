// Package faults breaks a real cluster on this machine, in the ways of docs/how-to/node-failures.md
// and docs/how-to/troubleshooting.md, and verifies the data. The package has tests only: make
// test-cluster.
package faults
