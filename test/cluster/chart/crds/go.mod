// What has the CRDs of cert-manager and of Prometheus' operator, for the test that has a real API server read the chart's objects
// of theirs. Nothing is built of it.
module github.com/causeway-csi/causeway/test/cluster/chart/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.19.1
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
