package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/causeway-csi/causeway/internal/guard"
	"github.com/causeway-csi/causeway/internal/peer"
)

// recoverPanics turns a panic into an error: one bad call must not end the others.
func recoverPanics(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return guard.Value(func() (any, error) { return handler(ctx, req) })
}

// mapErrors gives an error its status code, and takes out of its text whatever is secret in the request.
func mapErrors(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		return resp, nil
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	return nil, &callError{code: codeOf(err), text: newScrubber(req).scrub(text), cause: err}
}

// callError is a status that remembers its cause for the log.
type callError struct {
	code  codes.Code
	text  string
	cause error
}

func (e *callError) Error() string              { return e.text }
func (e *callError) GRPCStatus() *status.Status { return status.New(e.code, e.text) }
func (e *callError) Unwrap() error              { return e.cause }

// quiet are the calls that only ask. They are logged at level debug, unless they fail.
var quiet = map[string]bool{
	"GetPluginInfo": true, "GetPluginCapabilities": true, "Probe": true,
	"ControllerGetCapabilities": true, "NodeGetCapabilities": true, "NodeGetInfo": true,
	"ValidateVolumeCapabilities": true, "ControllerGetVolume": true, "ListVolumes": true, "GetCapacity": true,
	"ControllerGetVolumeHealth": true, "ControllerListVolumeHealth": true, "GetSnapshot": true, "ListSnapshots": true,
	"GroupControllerGetCapabilities": true, "GetVolumeGroupSnapshot": true,
	"NodeGetVolumeStats": true, "NodeGetVolumeHealth": true, "NodeGetStorageHealth": true,
	"GetMetadataAllocated": true, "GetMetadataDelta": true, "Locate": true, "GetPart": true,
}

// logCalls writes one line for each call. At level debug the line has the request and the response, redacted.
func logCalls(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := time.Now()
		resp, err := handler(ctx, req)
		method, code := path.Base(info.FullMethod), status.Code(err)
		level := levelOf(method, code)
		if !log.Enabled(ctx, level) {
			return resp, err
		}
		attrs := append(make([]slog.Attr, 0, 10), slog.String("code", code.String()), slog.Float64("ms", float64(time.Since(start).Microseconds())/1000))
		attrs = append(attrs, subject(req, resp)...)
		if err != nil {
			attrs = append(attrs, slog.String("error", status.Convert(err).Message()))
		}
		if p := (*guard.Panic)(nil); errors.As(err, &p) {
			attrs = append(attrs, slog.String("stack", string(p.Stack)))
		}
		if log.Enabled(ctx, slog.LevelDebug) {
			attrs = append(attrs, slog.Any("request", redacted(req)), slog.Any("response", redacted(resp)))
		}
		log.LogAttrs(ctx, level, method, attrs...)
		return resp, err
	}
}

func levelOf(method string, code codes.Code) slog.Level {
	switch {
	case code == codes.Internal, code == codes.Unknown, code == codes.DataLoss:
		return slog.LevelError
	case code != codes.OK:
		return slog.LevelWarn
	case quiet[method]:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// What a request may have that says what it is about.
type (
	hasName              interface{ GetName() string }
	hasVolumeId          interface{ GetVolumeId() string }
	hasSourceVolumeId    interface{ GetSourceVolumeId() string }
	hasNodeId            interface{ GetNodeId() string }
	hasSnapshotId        interface{ GetSnapshotId() string }
	hasGroupSnapshotId   interface{ GetGroupSnapshotId() string }
	hasBaseSnapshotId    interface{ GetBaseSnapshotId() string }
	hasTargetSnapshotId  interface{ GetTargetSnapshotId() string }
	hasStagingTargetPath interface{ GetStagingTargetPath() string }
	hasTargetPath        interface{ GetTargetPath() string }
)

// subject returns what a call is about.
func subject(req, resp any) []slog.Attr {
	var attrs []slog.Attr
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, fmt.Sprintf("%.200s", value)))
		}
	}
	add("name", of(req, hasName.GetName))
	add("name", of(req, func(r *peer.LocateRequest) string { return r.GetCreate().GetName() }))
	add("name", of(req, func(r *peer.SnapshotPartRequest) string { return r.GetGroup().GetName() }))
	add("volume", of(req, hasVolumeId.GetVolumeId))
	add("volume", of(req, hasSourceVolumeId.GetSourceVolumeId))
	add("volume", of(resp, func(r *csi.CreateVolumeResponse) string { return r.GetVolume().GetVolumeId() }))
	add("source", of(req, func(r *csi.CreateVolumeRequest) string { return r.GetVolumeContentSource().GetVolume().GetVolumeId() }))
	add("source", of(req, func(r *csi.CreateVolumeRequest) string {
		return r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	}))
	add("node", of(req, hasNodeId.GetNodeId))
	add("snapshot", of(req, hasSnapshotId.GetSnapshotId))
	add("snapshot", of(resp, func(r *csi.CreateSnapshotResponse) string { return r.GetSnapshot().GetSnapshotId() }))
	add("group", of(req, hasGroupSnapshotId.GetGroupSnapshotId))
	add("group", of(resp, func(r *csi.CreateVolumeGroupSnapshotResponse) string {
		return r.GetGroupSnapshot().GetGroupSnapshotId()
	}))
	add("base", of(req, hasBaseSnapshotId.GetBaseSnapshotId))
	add("snapshot", of(req, hasTargetSnapshotId.GetTargetSnapshotId))
	add("staging", of(req, hasStagingTargetPath.GetStagingTargetPath))
	add("target", of(req, hasTargetPath.GetTargetPath))
	return attrs
}

// of returns what get finds in a message, if that is a T.
func of[T any](message any, get func(T) string) string {
	m, ok := message.(T)
	if !ok {
		return ""
	}
	return get(m)
}
