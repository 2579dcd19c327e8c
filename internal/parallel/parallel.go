// Package parallel is for TestMain of packages whose tests wait for disks and servers.
package parallel

import (
	"flag"
	"runtime"
	"strconv"
)

// Tests lets at least eight tests with t.Parallel run side by side, also on a machine with fewer
// cores. The flag -parallel of go test overrides it: call Tests before flag.Parse.
func Tests() {
	n := strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))
	// flag.Set would mark the flag as used, and Ginkgo, which runs csi-sanity, refuses that.
	if err := flag.Lookup("test.parallel").Value.Set(n); err != nil {
		panic(err)
	}
}
