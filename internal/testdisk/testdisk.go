// Package testdisk mounts filesystems in files, on loop devices, for tests. The test's process has
// a mount namespace of its own: see package namespace.
package testdisk
