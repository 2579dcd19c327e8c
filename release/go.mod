// The release: its build and its verification. A module of its own, so that the product's go.mod stays that of a driver.
module github.com/causeway-csi/causeway/release

go 1.26.0

replace github.com/causeway-csi/causeway/deploy/images => ../deploy/images

require (
	github.com/causeway-csi/causeway/deploy/images v0.0.0-00010101000000-000000000000
	golang.org/x/mod v0.43.0
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	github.com/google/go-containerregistry v0.22.1 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/knqyf263/go-deb-version v0.0.0-20241115132648-6f4aee6ccd23 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/spdx/tools-golang v0.5.7 // indirect
	github.com/ulikunitz/xz v0.5.17 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
)
