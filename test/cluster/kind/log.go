package kind

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"sigs.k8s.io/kind/pkg/log"
)

// logger forwards the messages of kind to the current writer. kind logs from several goroutines.
type logger struct {
	mu sync.Mutex
	w  io.Writer // nil drops the messages
}

var _ log.Logger = (*logger)(nil)

// to sets who is told.
func (l *logger) to(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = w
}

// Info writes a line.
func (l *logger) Info(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w != nil {
		fmt.Fprintln(l.w, "kind: "+strings.TrimRight(message, "\n"))
	}
}

// Infof writes a line.
func (l *logger) Infof(format string, args ...any) { l.Info(fmt.Sprintf(format, args...)) }

// Warn writes a line.
func (l *logger) Warn(message string) { l.Info(message) }

// Warnf writes a line.
func (l *logger) Warnf(format string, args ...any) { l.Infof(format, args...) }

// Error writes a line.
func (l *logger) Error(message string) { l.Info(message) }

// Errorf writes a line.
func (l *logger) Errorf(format string, args ...any) { l.Infof(format, args...) }

// Enabled returns true.
func (l *logger) Enabled() bool { return true }

// V drops messages for developers of kind.
func (l *logger) V(level log.Level) log.InfoLogger {
	if level > 0 {
		return log.NoopInfoLogger{}
	}
	return l
}
