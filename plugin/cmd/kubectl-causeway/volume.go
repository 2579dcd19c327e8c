package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/causeway-csi/causeway/plugin/internal/story"
)

func volumeCommand() command {
	program := ""
	return command{
		usage: "Show all about a claim: objects, events, node, path, record, mounts, health, snapshots, jobs.\n\n" +
			"  kubectl causeway volume NAME [-n NAMESPACE]\n  kubectl causeway volume pv/NAME\n\n" +
			"--namespace is that of the claim; with pv/NAME that of the driver. --release selects the driver.\n",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&program, "program", "/driver", "path of the driver in its image")
		},
		run: func(ctx context.Context, s session, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%w: %d arguments, want the name of a claim, or pv/NAME", errUsage, len(args))
			}
			selection := s.selection
			if !strings.HasPrefix(args[0], "pv/") {
				selection.Namespace = "" // --namespace is that of the claim
			}
			found, err := story.Of(ctx, s.client, selection, s.namespace, args[0], program)
			if err != nil {
				return err
			}
			return s.print(found)
		},
	}
}
