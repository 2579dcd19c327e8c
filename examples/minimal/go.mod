module github.com/causeway-csi/causeway/examples/minimal

go 1.26.0

require github.com/causeway-csi/causeway v0.1.0
