// Command wine runs tests of the driver for Windows under Wine: unit tests with csi-sanity, and
// then the driver itself as a process, whose endpoint is on TCP. Wine proves the logic of the
// services, paths, records and the start of the program. It proves nothing about links, sockets and
// access control lists of Windows, which it does not have.
//
// wine needs root only to install packages. It keeps its prefix, which has about 700 MB, in the
// user's cache directory.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/namespace"
)

const module = "github.com/causeway-csi/causeway/"

// packages are the packages whose unit tests pass under Wine.
var packages = []string{
	"internal/atomicfile",
	"internal/beneath",
	"internal/dacl",
	"internal/peertls",
	"internal/regular",
	"pkg/backend/backendtest/memory",
	"pkg/backend/hostpath",
	"pkg/backend/hostpath/internal/catalog",
	"pkg/backend/hostpath/internal/store",
	"pkg/backend/internal/copier",
	"pkg/backend/internal/jobs",
	"pkg/backend/internal/record",
	sanityPackage,
	"pkg/mounter",
	"pkg/mounter/internal/links",
	"pkg/mounter/internal/links/win",
	"pkg/mounter/mountertest",
	"pkg/volumeid",
}

// sanityPackage has csi-sanity in its tests.
const sanityPackage = "pkg/driver"

func main() {
	unit := flag.Bool("unit", true, "run the unit tests")
	process := flag.Bool("driver", true, "run the driver")
	report := flag.String("report", "", "write the results as JSON into this `file`")
	limit := flag.Duration("timeout", time.Hour, "how long all tests may take")
	flag.Parse()
	ctx, cancel := context.WithTimeoutCause(namespace.SignalContext(), *limit,
		fmt.Errorf("the tests took longer than %s", *limit))
	err := run(ctx, *unit, *process, *report)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "wine:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, unit, process bool, report string) (err error) {
	// A SIGKILL of go run, or of another parent, does not reach this process.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return err
	}
	start := time.Now()
	p, err := openPrefix(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if closed := p.close(); err == nil {
			err = closed
		}
	}()
	linux, err := sanityOnLinux(ctx, p)
	if err != nil {
		return err
	}
	prepared := time.Now()
	var rows []*row
	if unit {
		result, err := runUnitTests(ctx, p, linux)
		if err != nil {
			return err
		}
		rows = append(rows, result)
	}
	tested := time.Now()
	if process {
		result, err := runDriver(ctx, p, linux.specs[required])
		if err != nil {
			return err
		}
		rows = append(rows, result)
	}
	fmt.Printf("wine: all passed; %s to prepare, %s for unit tests, %s for the driver\n",
		prepared.Sub(start).Round(time.Second), tested.Sub(prepared).Round(time.Second),
		time.Since(tested).Round(time.Second))
	if report == "" {
		return nil
	}
	return writeRows(report, rows)
}
