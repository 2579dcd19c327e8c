package driver

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
)

// Traces sends a span for each call to OpenTelemetry. If tracing is off, its options are empty.
type Traces struct {
	Server []grpc.ServerOption
	Client []grpc.DialOption // for the calls to nodes that a call causes
	End    func(context.Context) error
}

// Tracing sets up tracing from the standard OTEL_* variables. Tracing is off unless
// OTEL_TRACES_EXPORTER (otlp, console or none) or an OTLP endpoint is set. A span has the method
// and the status, and no part of the request. Later errors of tracing go to log.
func Tracing(ctx context.Context, name, release string, log *slog.Logger) (Traces, error) {
	exporter, err := spanExporter(ctx)
	if err != nil || exporter == nil {
		return Traces{End: func(context.Context) error { return nil }}, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", name), attribute.String("service.version", release)),
		resource.WithFromEnv()) // overrides the attributes above
	if err != nil {
		return Traces{}, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing", "error", err) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	options := []otelgrpc.Option{
		otelgrpc.WithTracerProvider(provider),
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{},
			propagation.Baggage{})),
	}
	return Traces{
		Server: []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(options...))},
		Client: []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(options...))},
		End:    provider.Shutdown,
	}, nil
}

// spanExporter returns the exporter that the environment selects, or nil for none. The exporters
// read the rest of their variables themselves.
func spanExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	kind := os.Getenv("OTEL_TRACES_EXPORTER")
	if kind == "" && firstOf("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		kind = "otlp"
	}
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		kind = "none"
	}
	switch kind {
	case "", "none":
		return nil, nil
	case "console":
		return stdouttrace.New()
	case "otlp":
		switch protocol := firstOf("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
		case "", "http/protobuf":
			return otlptracehttp.New(ctx)
		case "grpc":
			return otlptracegrpc.New(ctx)
		default:
			return nil, fmt.Errorf("invalid OTEL_EXPORTER_OTLP_PROTOCOL %q: must be grpc or http/protobuf", protocol)
		}
	}
	return nil, fmt.Errorf("invalid OTEL_TRACES_EXPORTER %q: must be otlp, console or none", kind)
}

// firstOf returns the value of the first of these environment variables that is not empty.
func firstOf(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}
