module github.com/causeway-csi/causeway

go 1.26.0

require (
	github.com/google/uuid v1.6.0
	github.com/moby/sys/mountinfo v0.7.3
	golang.org/x/sys v0.49.0
	k8s.io/mount-utils v0.37.2
)

require (
	github.com/go-logr/logr v1.4.3 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
	k8s.io/utils v0.0.0-20260626114624-be93311217bd // indirect
)
