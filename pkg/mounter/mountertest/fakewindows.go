//go:build !windows

package mountertest

import "github.com/causeway-csi/causeway/pkg/mounter"

// FakeWindows is the Host of a Windows node over files of this machine.
type FakeWindows = mounter.FakeWindows

// NewFakeWindows returns the Host of a Windows node whose kubelet directory is dir.
func NewFakeWindows(dir, state string) (*FakeWindows, error) {
	return mounter.NewFakeWindows(dir, state)
}
