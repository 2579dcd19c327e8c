package csidriver_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest/memory"
	"github.com/causeway-csi/causeway/pkg/csidriver"
)

// A program registers its backend, with a flag. In main, call Main instead of Run.
func ExampleRun() {
	dir := ""
	program := csidriver.Program{
		Name:    "disk.csi.example.com",
		Version: "v1.0.0",
		Backends: []csidriver.Backend{{
			Name: "disk",
			Flags: func(set *flag.FlagSet) {
				set.StringVar(&dir, "disk-dir", "/var/lib/disk", "disk: `directory` of the volumes")
			},
			Open: func(csidriver.Config) (backend.Backend, error) { return memory.New(memory.Config{Dir: dir}), nil },
		}},
	}
	env := csidriver.Environment{Command: "mydriver", Getenv: os.Getenv, Stdout: &strings.Builder{}, Stderr: os.Stdout}
	code := csidriver.Run(context.Background(), program, []string{"--disk-dir", "/x", "--mode=everything"}, env)
	fmt.Println("exit code", code)
	// Output:
	// mydriver: invalid --mode "everything": must be all, controller or node
	// exit code 2
}
