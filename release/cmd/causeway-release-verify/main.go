// Command causeway-release-verify verifies the files of a release, without a network:
// docs/how-to/verify-a-release.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/causeway-csi/causeway/release/internal/attest"
	"github.com/causeway-csi/causeway/release/internal/verify"
)

// version is set by the linker.
var version = "dev"

func main() {
	err := run(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		fmt.Fprintln(os.Stderr, "causeway-release-verify: do not use this release")
		os.Exit(1)
	}
}

func run(args []string) error {
	var o verify.Options
	flags := flag.NewFlagSet("causeway-release-verify [flags] DIR", flag.ContinueOnError)
	key := flags.String("key", "", "file with the public key of the project, cosign.pub")
	flags.StringVar(&o.Version, "version", "", "expected version, such as v1.2.3; without it any version is accepted")
	flags.BoolVar(&o.AllowUnsigned, "allow-unsigned", false,
		"accept a release without signatures: anyone can have changed it")
	flags.BoolVar(&o.AllowUntagged, "allow-untagged", false, "accept a test build of a commit without a tag")
	own := flags.Bool("print-version", false, "print the version of this program")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *own {
		fmt.Println("causeway-release-verify", version)
		return nil
	}
	if flags.NArg() != 1 {
		return errors.New("usage: causeway-release-verify --key=cosign.pub [--version=v1.2.3] DIR")
	}
	o.Dir = flags.Arg(0)
	if *key != "" {
		content, err := os.ReadFile(*key)
		if err != nil {
			return err
		}
		public, err := attest.ParseKey(content)
		if err != nil {
			return fmt.Errorf("%s: %w", *key, err)
		}
		o.Key = &public
	}
	report, err := verify.Verify(o)
	if err != nil {
		return err
	}
	fmt.Println(report)
	return nil
}
