// Package linux is the Host of Linux 5.8 and newer. It is a table from the kind of a mount to the
// part that mounts it, and what all kinds share: Unmount and Remove.
package linux
