// Package fails tests the failures of csi-sidecars: replicas that change the lead, old sidecars
// beside it, drivers and API servers that go away. Each test ends with a check of the driver's
// storage: a volume for each claim, and no other.
package fails

import (
	"context"
	"errors"
	"log"
	"os"
	"testing"

	"github.com/causeway-csi/causeway/internal/parallel"
	"github.com/causeway-csi/causeway/sidecars/test/rig"
	"github.com/causeway-csi/causeway/test/cluster/controlplane"
)

// world is the state that all tests share.
var world struct {
	*rig.Plane
	dir    string // short, as sockets are in it
	binary string // csi-sidecars
}

func TestMain(m *testing.M) {
	if os.Getenv(toyKey) != "" {
		os.Exit(toy())
	}
	parallel.Tests()
	code, err := run(m)
	if err != nil {
		log.Println(err)
		code = 1
	}
	os.Exit(code)
}

// run starts the world, runs the tests in it, and ends it.
func run(m *testing.M) (code int, err error) {
	if world.dir, err = os.MkdirTemp("", "fails-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(world.dir)
	ctx := context.Background() // the first time, components are built
	built := make(chan error, 1)
	go func() {
		var err error
		world.binary, err = rig.Build(ctx, world.dir, "csi-sidecars")
		built <- err
	}()
	world.Plane, err = rig.StartPlane(ctx, controlplane.Options{})
	if err := errors.Join(err, <-built); err != nil {
		return 1, err
	}
	defer world.Close()
	return m.Run(), nil
}
