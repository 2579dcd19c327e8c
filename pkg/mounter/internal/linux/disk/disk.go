// Package disk mounts block devices that are attached to this node, and formats the blank.
package disk
