// Package quietlog keeps the lines of klog out of the output of tests: mount-utils logs each mkfs,
// and each failure that a test causes.
package quietlog

import (
	"log/slog"

	"k8s.io/klog/v2"
)

// Discard discards the lines of klog from now on. TestMain calls it.
func Discard() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }
