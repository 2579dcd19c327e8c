package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/causeway-csi/causeway/pkg/mounter/host"
)

// newFinder returns the finder of a Windows node, for the disks that are attached to its machine.
func newFinder(string) finder { return findBy(host.FindDevice) }

// openCloud returns errors.ErrUnsupported: the controller, which alone uses the cloud, runs on
// Linux.
func openCloud(string, []string, int64, *slog.Logger) (cloud, error) {
	return nil, fmt.Errorf("%w: the controller of this driver on Windows: run it on a Linux node", errors.ErrUnsupported)
}
