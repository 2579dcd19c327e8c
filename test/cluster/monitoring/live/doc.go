// Package live causes faults in a real cluster on this machine, beside a Prometheus with the
// chart's rules: kubectl causeway doctor must name each fault, and its alerts must fire, and both
// must end after the repair. It also runs doctor on a healthy cluster, and each query of the
// dashboards. The package has tests only: make test-faults. With -short a test compares the faults
// with the pages.
package live
