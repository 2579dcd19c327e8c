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

// Traces sends a span for each call to OpenTelemetry. Its options are empty if it is off.
type Traces struct {
	Server []grpc.ServerOption
	Client []grpc.DialOption // for calls that are made because of others
	End    func(context.Context) error
}

// Tracing is set up by the standard OTEL_* variables, and is off unless OTEL_TRACES_EXPORTER (otlp, console or none) or
// an OTLP endpoint is among them. Spans have the method and the status, nothing of a request. What goes wrong with it
// later goes to log.
func Tracing(ctx context.Context, name, release string, log *slog.Logger) (Traces, error) {
	exporter, err := spanExporter(ctx)
	if err != nil || exporter == nil {
		return Traces{End: func(context.Context) error { return nil }}, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", name), attribute.String("service.version", release)),
		resource.WithFromEnv()) // the later one counts
	if err != nil {
		return Traces{}, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing", "error", err) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	options := []otelgrpc.Option{
		otelgrpc.WithTracerProvider(provider),
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})),
	}
	return Traces{
		Server: []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(options...))},
		Client: []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(options...))},
		End:    provider.Shutdown,
	}, nil
}

// spanExporter returns the exporter that the environment asks for, or nil for none. The exporters read the rest of
// their variables themselves.
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
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: only grpc and http/protobuf are known", protocol)
		}
	}
	return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: only otlp, console and none are known", kind)
}

// firstOf returns the first of these environment variables that is set.
func firstOf(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}
