// Package testdisk mounts filesystems in files, on loop devices, for tests. The test's process is in a mount namespace
// of its own: see package namespace.
package testdisk
