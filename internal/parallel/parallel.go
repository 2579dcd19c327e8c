// Package parallel is for TestMain of packages whose tests wait for disks and servers.
package parallel

import "flag"

// Tests lets eight tests with t.Parallel run side by side, also on a machine with fewer cores. The
// flag -parallel of go test overrides it.
func Tests() {
	// flag.Set would mark the flag as used, and Ginkgo, which runs csi-sanity, refuses that.
	if err := flag.Lookup("test.parallel").Value.Set("8"); err != nil {
		panic(err)
	}
}
