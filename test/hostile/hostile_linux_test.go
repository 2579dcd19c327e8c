package main

import (
	"errors"
	"os"
	"testing"

	"github.com/causeway-csi/causeway/internal/hang"
	"github.com/causeway-csi/causeway/internal/namespace"
	"github.com/causeway-csi/causeway/test/figures"
)

var noNamespace error

func TestMain(m *testing.M) {
	hang.Main()
	attackerMain()
	noNamespace = namespace.Enter()
	os.Exit(m.Run())
}

// TestTrials runs all trials in a short form, which asserts no times: innocent volumes are served,
// nothing escapes, SIGTERM ends the driver, the next one serves, and nothing is left.
func TestTrials(t *testing.T) {
	if noNamespace != nil {
		namespace.Skip(t, noNamespace)
	}
	dir, err := workplace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := figures.CleanUp(dir); err != nil {
			t.Error(err)
		}
	})
	bin, err := figures.BuildDriver(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, trial := range trials() {
		t.Run(trial.title, func(t *testing.T) {
			b := &bench{options: options{rounds: 1, races: 400, levels: 17000, short: true, bin: bin}, dir: dir}
			err := trial.run(t.Context(), b)
			if errors.Is(err, errNoDisk) {
				namespace.Skip(t, err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
