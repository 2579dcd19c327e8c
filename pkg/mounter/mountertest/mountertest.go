// Package mountertest has mounters for tests.
package mountertest

import "github.com/causeway-csi/causeway/pkg/mounter"

// Fake is a Host that keeps its mounts in memory.
type Fake = mounter.Fake

// NewFake returns a Fake for paths below dir.
func NewFake(dir string) *Fake { return mounter.NewFake(dir) }
