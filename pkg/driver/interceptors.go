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

// recoverPanics turns a panic of a handler into an error, so that other calls continue.
func recoverPanics(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return guard.Value(func() (any, error) { return handler(ctx, req) })
}

// mapErrors gives an error its status code, and removes the secrets of the request from its text.
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

// callError is a status that keeps its cause for the log.
type callError struct {
	code  codes.Code
	text  string
	cause error
}

func (e *callError) Error() string              { return e.text }
func (e *callError) GRPCStatus() *status.Status { return status.New(e.code, e.text) }
func (e *callError) Unwrap() error              { return e.cause }

// quiet are the calls that change nothing. They are logged at level debug, unless they fail.
var quiet = map[string]bool{
	"GetPluginInfo": true, "GetPluginCapabilities": true, "Probe": true,
	"ControllerGetCapabilities": true, "NodeGetCapabilities": true, "NodeGetInfo": true,
	"ValidateVolumeCapabilities": true, "ControllerGetVolume": true, "ListVolumes": true, "GetCapacity": true,
	"ControllerGetVolumeHealth": true, "ControllerListVolumeHealth": true, "GetSnapshot": true, "ListSnapshots": true,
	"GroupControllerGetCapabilities": true, "GetVolumeGroupSnapshot": true,
	"NodeGetVolumeStats": true, "NodeGetVolumeHealth": true, "NodeGetStorageHealth": true,
	"GetMetadataAllocated": true, "GetMetadataDelta": true, "Locate": true, "GetPart": true,
}

// logCalls logs one line for each call. At level debug the line has the request and the response,
// without secrets.
func logCalls(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := time.Now()
		resp, err := handler(ctx, req)
		method, code := path.Base(info.FullMethod), status.Code(err)
		level := levelOf(method, code)
		if !log.Enabled(ctx, level) {
			return resp, err
		}
		attrs := append(make([]slog.Attr, 0, 10), slog.String("code", code.String()),
			slog.Float64("ms", float64(time.Since(start).Microseconds())/1000))
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

// Getters of the fields that identify the objects of a request.
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

// subject returns the identifiers of the objects that a call concerns.
func subject(req, resp any) []slog.Attr {
	var attrs []slog.Attr
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, fmt.Sprintf("%.200s", value)))
		}
	}
	add("name", fieldOf(req, hasName.GetName))
	add("name", fieldOf(req, func(r *peer.LocateRequest) string { return r.GetCreate().GetName() }))
	add("name", fieldOf(req, func(r *peer.SnapshotPartRequest) string { return r.GetGroup().GetName() }))
	add("volume", fieldOf(req, hasVolumeId.GetVolumeId))
	add("volume", fieldOf(req, hasSourceVolumeId.GetSourceVolumeId))
	add("volume", fieldOf(resp, func(r *csi.CreateVolumeResponse) string { return r.GetVolume().GetVolumeId() }))
	add("source", fieldOf(req, func(r *csi.CreateVolumeRequest) string {
		return r.GetVolumeContentSource().GetVolume().GetVolumeId()
	}))
	add("source", fieldOf(req, func(r *csi.CreateVolumeRequest) string {
		return r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	}))
	add("node", fieldOf(req, hasNodeId.GetNodeId))
	add("snapshot", fieldOf(req, hasSnapshotId.GetSnapshotId))
	add("snapshot", fieldOf(resp, func(r *csi.CreateSnapshotResponse) string {
		return r.GetSnapshot().GetSnapshotId()
	}))
	add("group", fieldOf(req, hasGroupSnapshotId.GetGroupSnapshotId))
	add("group", fieldOf(resp, func(r *csi.CreateVolumeGroupSnapshotResponse) string {
		return r.GetGroupSnapshot().GetGroupSnapshotId()
	}))
	add("base", fieldOf(req, hasBaseSnapshotId.GetBaseSnapshotId))
	add("snapshot", fieldOf(req, hasTargetSnapshotId.GetTargetSnapshotId))
	add("staging", fieldOf(req, hasStagingTargetPath.GetStagingTargetPath))
	add("target", fieldOf(req, hasTargetPath.GetTargetPath))
	return attrs
}

// fieldOf returns the result of get for a message of type T, and "" for other messages.
func fieldOf[T any](message any, get func(T) string) string {
	m, ok := message.(T)
	if !ok {
		return ""
	}
	return get(m)
}
