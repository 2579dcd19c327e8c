package hostpath

// dataMode is the mode of a new volume's directory: the user of a container may write to it. The
// kubelet does not apply fsGroup here.
const dataMode = 0o777
