package cifs

import (
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// TestTheLabelOfAShareReachesTheKernel: without its quotes.
func TestTheLabelOfAShareReachesTheKernel(t *testing.T) {
	share := mounter.Mount{Kind: mounter.Share, Options: []string{`context="a:b:c:s0:c1,c2"`}}
	if got := ownParameters(share); got[0] != [2]string{"context", "a:b:c:s0:c1,c2"} {
		t.Errorf("a share has %q", got)
	}
}
