module github.com/causeway-csi/causeway/examples/attached

go 1.26.0

require (
	github.com/causeway-csi/causeway v0.1.0
	golang.org/x/sys v0.49.0
)
