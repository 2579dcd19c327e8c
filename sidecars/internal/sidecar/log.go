package sidecar

import (
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/causeway-csi/causeway/internal/logsafe"
)

// Logging sets up the log of a binary. Its flags are those of the process.
type Logging interface {
	Flags(*Flags)
	// Apply returns the logger for klog.
	Apply() (logr.Logger, error)
}

// plainLog is the log of the binary for nodes: the text of klog, or JSON of package slog. The log
// of component-base, which the other binary has for all of upstream's flags, would add 4 MB.
type plainLog struct {
	text   *textlogger.Config
	format string
}

// Flags declares the flags of upstream that do not need component-base.
func (l *plainLog) Flags(f *Flags) {
	l.text = textlogger.NewConfig()
	f.Declare(func(s *flag.FlagSet) {
		s.Var(l.text.Verbosity(), "v", "how much is logged: 0 little, 5 each CSI call")
		s.Var(l.text.VModule(), "vmodule", "levels by file, as `pattern=level`, for the text format only")
	})
	f.String(&l.format, "logging-format", "text", "text or json")
}

func (l *plainLog) Apply() (logr.Logger, error) {
	switch l.format {
	case "text":
		return textlogger.NewLogger(l.text), nil
	case "json":
		var level slog.LevelVar
		var v int
		if _, err := fmt.Sscan(l.text.Verbosity().String(), &v); err != nil {
			return logr.Logger{}, err
		}
		level.Set(slog.Level(-v))
		return logr.FromSlogHandler(slog.NewJSONHandler(logsafe.JSON(os.Stderr),
			&slog.HandlerOptions{Level: &level, AddSource: true})), nil
	}
	return logr.Logger{}, fmt.Errorf("invalid --logging-format %q: must be text or json", l.format)
}

// startLog makes log the logger of klog, and adds the controller to each line.
func startLog(log logr.Logger) {
	klog.SetLoggerWithOptions(logr.New(newNamer(log.GetSink())), klog.ContextualLogger(true))
}

// namer adds sidecar="…" to the lines of a controller. Upstream's controllers share this process
// and do not name themselves; some log a value "controller" with another meaning.
type namer struct{ logr.LogSink }

func newNamer(sink logr.LogSink) logr.LogSink {
	if deeper, ok := sink.(logr.CallDepthLogSink); ok {
		sink = deeper.WithCallDepth(1)
	}
	return namer{sink}
}

func named(keysAndValues []any) []any {
	if name := OfStack(); name != "" {
		return append([]any{"sidecar", name}, keysAndValues...)
	}
	return keysAndValues
}

// Init does nothing: the wrapped sink is initialized.
func (n namer) Init(logr.RuntimeInfo) {}

func (n namer) Info(level int, msg string, keysAndValues ...any) {
	n.LogSink.Info(level, msg, named(keysAndValues)...)
}

func (n namer) Error(err error, msg string, keysAndValues ...any) {
	n.LogSink.Error(err, msg, named(keysAndValues)...)
}

func (n namer) WithValues(keysAndValues ...any) logr.LogSink {
	return namer{n.LogSink.WithValues(keysAndValues...)}
}

func (n namer) WithName(name string) logr.LogSink { return namer{n.LogSink.WithName(name)} }

// WithCallDepth keeps file and line of log lines right if the logger is wrapped.
func (n namer) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := n.LogSink.(logr.CallDepthLogSink); ok {
		return namer{deeper.WithCallDepth(depth)}
	}
	return n
}
