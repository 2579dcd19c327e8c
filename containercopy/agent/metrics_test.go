package agent

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/causeway-csi/causeway/containercopy/container"
	"github.com/causeway-csi/causeway/containercopy/cri"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// TestResults: the objectives of docs/questionnaire.md count INTERNAL, UNAVAILABLE and DATA_LOSS,
// so neither a client that ends nor a container that ends is one of them.
func TestResults(t *testing.T) {
	for want, errs := range map[string][]error{
		"ok":                  {nil},
		"canceled":            {errCanceled, errUnused, fmt.Errorf("%w: %w", stream.ErrClient, io.EOF)},
		"FAILED_PRECONDITION": {fmt.Errorf("%w: %w", container.ErrGone, stream.ErrWorker), cri.ErrNotRunning, container.ErrRaised},
		"UNAVAILABLE":         {errors.New("another error"), stream.ErrWorker, errEnds, cri.ErrUnavailable},
		"DATA_LOSS":           {&wire.Failure{Code: wire.DataLoss}},
		"INTERNAL":            {&wire.Failure{Code: "a label of a worker"}},
	} {
		for _, err := range errs {
			if got := resultOf(err); got != want {
				t.Errorf("%v: %s, want %s", err, got, want)
			}
		}
	}
}
