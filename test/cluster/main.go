// Command cluster runs Kubernetes clusters for trials and tests.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/provider"
)

func main() {
	local.Main()
	c, err := local.New("causeway")
	if err == nil {
		switch os.Args[1] {
		case "up":
			err = c.Up(context.Background(), provider.Options{Nodes: 2, Log: os.Stderr})
		case "down":
			err = c.Down(context.Background())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
