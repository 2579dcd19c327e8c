// Package live runs Prometheus with the chart's rules beside a real cluster on this machine, causes
// faults, and verifies that their alerts fire and end. It also runs each query of the dashboards. The
// package has tests only: make test-alerts.
package live
