module github.com/causeway-csi/causeway/examples/attached

go 1.26.0

require (
	github.com/causeway-csi/causeway v0.1.0
	github.com/container-storage-interface/spec v1.13.0
	github.com/kubernetes-csi/csi-test/v5 v5.6.0
	github.com/onsi/ginkgo/v2 v2.32.1
	github.com/onsi/gomega v1.42.1
	github.com/prometheus/client_golang v1.25.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
)
