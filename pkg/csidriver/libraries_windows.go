package csidriver

import (
	"log/slog"

	"k8s.io/klog/v2"
)

// logLibraries sends the logs of libraries to log: csi-proxy uses klog, and microsoft/wmi the
// package log, with two lines for each call, which are for debugging.
func logLibraries(log *slog.Logger) {
	klog.SetSlogLogger(log)
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(log)
}
