// The tools of this project, apart from the product's own dependencies.
module github.com/causeway-csi/causeway/tools

go 1.26.0

tool google.golang.org/grpc/cmd/protoc-gen-go-grpc

require (
	golang.org/x/net v0.59.0 // indirect
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.0 // indirect
	google.golang.org/protobuf v1.36.10 // indirect
)
