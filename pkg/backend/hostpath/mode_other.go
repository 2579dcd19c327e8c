//go:build !windows

package hostpath

// dataMode is the mode of a new volume's directory. The directory belongs to root, as that of a new
// filesystem does. Pods that do not run as root set fsGroup.
const dataMode = 0o755
