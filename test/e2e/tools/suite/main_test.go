package suite

import (
	"flag"
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

// drivers is a flag that names driver files. Reading one defines its specs. The framework's own flag for that takes files with
// mistakes in them for files without what was misspelt.
type drivers []string

func (d *drivers) String() string { return "" }

func (d *drivers) Set(path string) error {
	if _, err := definition.Read(path); err != nil {
		return err
	}
	*d = append(*d, path)
	return external.AddDriverDefinition(path)
}

var named drivers

func TestMain(m *testing.M) {
	flag.Var(&named, "driver", "a driver file, by its absolute path; files that it names are beside it, and -repo-root is their directory")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if len(named) == 0 { // go test ./...: there is nothing to test, and no cluster
		os.Exit(0)
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	testfiles.AddFileSource(testfiles.RootFileSource{Root: framework.TestContext.RepoRoot})
	os.Exit(m.Run())
}

func TestStorage(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "Kubernetes external storage", suite, reporter)
}
