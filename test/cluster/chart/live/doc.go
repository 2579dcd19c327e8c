// Package live has Helm install, upgrade, roll back and uninstall the chart on a real cluster on
// this machine, while pods use their volumes. The package has tests only: make test-cluster.
package live
