package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/causeway-csi/causeway/plugin/internal/bundle"
	"github.com/causeway-csi/causeway/plugin/internal/cluster"
)

func bundleCommand() command {
	o := bundle.Options{Version: version}
	file := ""
	return command{
		usage: "Write an archive for support: logs, objects, records and metrics, without secrets.\n\n" +
			"  kubectl causeway bundle [--file=NAME.tar.gz]\n",
		noOutput: true,
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&file, "file", "", "name of the archive; default: causeway-bundle-TIME.tar.gz")
			fs.Int64Var(&o.LogLimit, "log-limit", 10<<20, "bytes of each log: its end is kept")
			fs.StringVar(&o.Program, "program", "/driver", "path of the driver in its image")
		},
		run: func(ctx context.Context, s session, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			if s.output == "json" {
				return fmt.Errorf("%w: bundle has no --output=json: it writes an archive", errUsage)
			}
			if o.LogLimit <= 0 {
				return fmt.Errorf("%w: invalid --log-limit %d: must be positive", errUsage, o.LogLimit)
			}
			if file == "" {
				file = "causeway-bundle-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			return s.bundle(ctx, o, file)
		},
	}
}

// bundle writes the archive to a new file. After an error there is no file.
func (s session) bundle(ctx context.Context, o bundle.Options, file string) error {
	v, err := cluster.Gather(ctx, s.client, s.selection)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	complete, err := bundle.Write(ctx, s.client, v, o, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	if !complete {
		fmt.Fprintf(s.out, "%s: see MANIFEST in it for the parts that could not be collected\n", file)
		return nil
	}
	fmt.Fprintln(s.out, file)
	return nil
}
