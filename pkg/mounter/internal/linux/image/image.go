// Package image makes, mounts and grows images: files with a filesystem, or with the bytes of a raw
// block volume.
package image
