package suite

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	"k8s.io/kubernetes/test/e2e/storage/external"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/utils/ktesting/format"

	"github.com/causeway-csi/causeway/test/e2e/tools/suite/definition"
)

// drivers is a flag that names driver definitions. The framework's own flag for that ignores most
// mistakes in them.
type drivers []string

func (d *drivers) String() string { return "" }

func (d *drivers) Set(path string) error {
	*d = append(*d, path)
	return nil
}

var (
	named drivers
	check = flag.Bool("check", false, "report all mistakes in the driver definitions, and end")
)

func TestMain(m *testing.M) {
	flag.Var(&named, "driver", "a driver definition, by its absolute path; files that it names are relative to "+
		"-repo-root, which is its directory")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if len(named) == 0 { // go test ./...: there is nothing to test, and no cluster
		os.Exit(0)
	}
	if err := read(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *check {
		os.Exit(0)
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	testfiles.AddFileSource(testfiles.RootFileSource{Root: framework.TestContext.RepoRoot})
	// The framework looks for the files of StorageClasses in the root, but opens those of snapshot
	// classes from here.
	if err := os.Chdir(framework.TestContext.RepoRoot); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// read reads the driver definitions, which defines their specs. The error has all mistakes. Notes
// are printed with -check.
func read() error {
	var errs []error
	for _, path := range named {
		_, notes, err := definition.Read(path)
		if err == nil && !*check {
			err = external.AddDriverDefinition(path)
		}
		errs = append(errs, err)
		for _, n := range notes {
			if *check {
				fmt.Println(n)
			}
		}
	}
	return errors.Join(errs...)
}

func TestStorage(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "Kubernetes external storage", suite, reporter)
}
