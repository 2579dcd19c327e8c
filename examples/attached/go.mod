module github.com/causeway-csi/causeway/examples/attached

go 1.26.0

require (
	github.com/causeway-csi/causeway v0.1.0
	github.com/container-storage-interface/spec v1.13.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
)
