// Container copy (KEP-4582). A module of its own, so that its dependencies are not the product's.
module github.com/causeway-csi/causeway/containercopy

go 1.26.0

require golang.org/x/sys v0.49.0
