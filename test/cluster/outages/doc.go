// Package outages writes from pods to volumes on a share while the server, the network, the driver
// or the node fails, and verifies each acknowledged write. The package has tests only: make
// test-smb-cluster.
package outages
