//go:build !windows

package csidriver

import "log/slog"

// logLibraries does nothing: only libraries of Windows have logs of their own that matter.
func logLibraries(*slog.Logger) {}
