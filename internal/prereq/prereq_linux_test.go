package prereq

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestNoGroupNeedsNothing: the tests of most clusters need no program beside those of the cluster.
func TestNoGroupNeedsNothing(t *testing.T) {
	var log strings.Builder
	if err := Install(t.Context(), &log); err != nil || log.Len() > 0 {
		t.Errorf("Install = %v, %q", err, log.String())
	}
}

func TestErrorsAreReturned(t *testing.T) {
	var log strings.Builder
	var exit *exec.ExitError
	if err := Install(t.Context(), &log, "no such group"); !errors.As(err, &exit) || !strings.Contains(log.String(), "no such group") {
		t.Errorf("Install of an unknown group = %v, %q", err, log.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Install(ctx, &log, "go"); !errors.Is(err, context.Canceled) {
		t.Errorf("Install after the end of the context = %v", err)
	}
}
