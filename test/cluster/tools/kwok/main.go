// Command kwok is kwok, without a data race of its start.
//
// Its controllers of nodes and of pods each make environments of CEL on goroutines of their own.
// These add Go types to maps of github.com/wzshiming/easycel v0.6.0 that have no lock, so that kwok
// could end with "concurrent map writes". Here the types are in the maps before the controllers
// start, which then only read them.
package main

import (
	"context"
	"os"

	"github.com/spf13/pflag"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

func main() {
	flags := pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true // the command below parses the rest
	flags.Usage = func() {}
	ctx, logger := log.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	if err == nil {
		err = registerTypes(ctx)
	}
	if err == nil {
		command := cmd.NewCommand(ctx)
		command.PersistentFlags().AddFlagSet(flags)
		err = command.ExecuteContext(ctx)
	}
	if err != nil {
		logger.Error("kwok ends", "err", err)
		os.Exit(1)
	}
}

// registerTypes makes the environments of CEL that the controllers make, one after the other.
func registerTypes(ctx context.Context) error {
	for _, object := range []any{&core.Node{}, &core.Pod{}} {
		stage := lifecycle.NewStage(&internalversion.Stage{Spec: internalversion.StageSpec{
			Selector: &internalversion.StageSelector{}}})
		if _, err := (lifecycle.Lifecycle{stage}).Match(ctx, &lifecycle.Event{Data: object}); err != nil {
			return err
		}
	}
	return nil
}
