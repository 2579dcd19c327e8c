// Package filesystem makes, checks and grows filesystems of Linux: ext4, xfs and btrfs.
package filesystem
