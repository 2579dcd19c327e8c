// Command release builds a release from a tag: docs/contributing/release.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/causeway-csi/causeway/release/internal/attest"
	"github.com/causeway-csi/causeway/release/internal/build"
	"github.com/causeway-csi/causeway/release/internal/verify"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run makes a release, and verifies it.
func run(ctx context.Context, args []string) error {
	password, passwordSet, err := build.TakePassword() // before any program runs, and without --key, too
	if err != nil {
		return err
	}
	o := build.Options{Log: os.Stderr}
	flags := flag.NewFlagSet("release [flags]", flag.ContinueOnError)
	flags.StringVar(&o.Version, "version", "", "version, such as v1.2.3: HEAD must have this tag")
	flags.StringVar(&o.Root, "root", ".", "directory of the sources")
	flags.StringVar(&o.Out, "out", "", "directory for the release; must be empty or absent")
	flags.StringVar(&o.WindowsBase, "windows-base", "",
		"base of the Windows images, with its digest; without it they are incomplete (docs/how-to/images.md)")
	flags.StringVar(&o.Builder, "builder", attest.Source+"/blob/main/docs/contributing/release.md#builder",
		"URI of the machine or service that runs the build, for the provenance")
	flags.BoolVar(&o.Untagged, "untagged", false,
		"permit a HEAD without the tag, for tests: the provenance notes it, and the verification rejects it")
	cosign := flags.String("cosign", "", "program cosign, for --key")
	key := flags.String("key", "",
		"file with the private key of cosign that signs; its password is in $COSIGN_PASSWORD. Without it the release "+
			"is not signed.")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.Out == "" {
		return errors.New("usage: release --version=VERSION --out=DIR [flags]")
	}
	for _, dir := range []*string{&o.Root, &o.Out} {
		absolute, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = absolute
	}
	o.Maker = build.Sources{Log: os.Stderr}
	check := verify.Options{Dir: o.Out, Version: o.Version, AllowUnsigned: *key == "", AllowUntagged: o.Untagged}
	if *key != "" {
		if !passwordSet {
			return errors.New("COSIGN_PASSWORD is not set: must be the password of --key")
		}
		signer, err := build.NewCosign(ctx, *cosign, *key, password)
		if err != nil {
			return err
		}
		public := signer.Key()
		o.Signer, check.Key = signer, &public
	}
	if err := build.Make(ctx, o); err != nil {
		return err
	}
	report, err := verify.Verify(check)
	if err != nil {
		return fmt.Errorf("the release is made, but not correct: %w", err)
	}
	fmt.Println(report)
	if *key == "" {
		fmt.Println("The release is NOT SIGNED: users cannot verify it. Sign with KEY: docs/contributing/release.md.")
	}
	return nil
}
