// Package tree has the paths below the kubelet directory of a Linux node, and the mounts at them.
// It uses system calls whose cost does not grow with the number of mounts.
package tree
