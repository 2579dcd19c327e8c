package main

import (
	"os"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/namespace"
)

// noNamespace is why drivers, which mount, cannot run.
var noNamespace error

func TestMain(m *testing.M) {
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// TestEachPartRuns makes few calls before few nodes: how long they take is nothing for a test.
func TestEachPartRuns(t *testing.T) {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	err := suite(t.Context(), options{rounds: 1, calls: 2, idle: time.Millisecond, fleets: []fleet{
		{nodes: 2, volumes: 100},
		{nodes: 20, volumes: 2000, compared: true},
	}})
	if err != nil {
		t.Error(err)
	}
}
