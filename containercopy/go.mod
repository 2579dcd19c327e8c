// Container copy (KEP-4582). A module of its own, so that its dependencies are not the product's.
module github.com/causeway-csi/causeway/containercopy

go 1.26.0

require (
	github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674
	golang.org/x/sys v0.49.0
)

require golang.org/x/net v0.26.0 // indirect
