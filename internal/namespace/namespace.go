// Package namespace runs a program of this project in a mount namespace of its own, so that whatever it mounts is
// seen by nobody else and is gone when it ends, however it ends. The demo, the benchmarks and the tests use it.
package namespace
