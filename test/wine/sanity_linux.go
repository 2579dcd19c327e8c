package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/causeway-csi/causeway/internal/sized"
	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// verdict is the T of Ginkgo outside of go test.
type verdict struct{ failed bool }

func (v *verdict) Fail() { v.failed = true }

// ids are IDs that the driver could have made.
type ids struct{ sanity.DefaultIDGenerator }

func (ids) GenerateUniqueValidVolumeID() string {
	return volumeid.New(volumeid.Volume, "node-1", uuid.NewString())
}

// runSanity runs csi-sanity against the driver. It runs on Linux, which makes and removes the
// directories of the kubelet. The specs that pass and that are skipped must be as many as wanted.
func runSanity(s *server, want specs) (*row, error) {
	config := sanity.NewTestConfig()
	config.Address = "dns:///" + s.address
	config.TargetPath, config.StagingPath = kubelet+`\target`, kubelet+`\staging`
	config.TestVolumeSize = 64 * mebibyte
	config.TestNodeVolumeAttachLimit = true
	config.IDGen = ids{}
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(sized.Answers))
	config.TestVolumeMutableParameters = map[string]string{"label": "mine"}
	create := func(path string) (string, error) { return path, os.MkdirAll(s.linux(path), 0o750) }
	remove := func(path string) error { return os.RemoveAll(s.linux(path)) } // follows no link
	config.CreateTargetDir, config.CreateStagingDir = create, create
	config.RemoveTargetPath, config.RemoveStagingPath = remove, remove
	config.CheckPath = s.kindOf
	var v verdict
	pending, failed, result := 0, 0, newRow("csi-sanity", "hostpath", "driver.exe under Wine, directories")
	ginkgo.Describe("driver.exe", func() { sanity.GinkgoTest(&config) })
	ginkgo.ReportAfterSuite("specs that ran", func(report types.Report) {
		result.Seconds = report.RunTime.Seconds()
		for _, spec := range report.SpecReports.WithLeafNodeType(types.NodeTypeIt) {
			switch spec.State {
			case types.SpecStatePassed:
				result.Passed++
			case types.SpecStateSkipped:
				result.skip(spec.FullText(), spec.Failure.Message)
			case types.SpecStatePending:
				pending++
			default:
				failed++
				fmt.Printf("\n%s: %s\n", spec.FullText(), spec.FailureMessage())
			}
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct, reporter.NoColor = true, true
	ginkgo.RunSpecs(&v, "csi-sanity", suite, reporter)
	fmt.Println()
	skipped := len(result.Tests)
	summary := fmt.Sprintf("%d Passed | %d Failed | %d Pending | %d Skipped", result.Passed, failed, pending, skipped)
	if got := (specs{fmt.Sprint(result.Passed), fmt.Sprint(skipped)}); v.failed || failed > 0 || got != want {
		return nil, fmt.Errorf("csi-sanity: %s; want %s passed and %s skipped, as on Linux", summary, want.passed,
			want.skipped)
	}
	fmt.Println("csi-sanity with driver.exe:", summary)
	return result, s.wantNothing()
}

// kindOf describes a path of the driver for csi-sanity.
func (s *server) kindOf(path string) (sanity.PathKind, error) {
	info, err := os.Stat(s.linux(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sanity.PathIsNotFound, nil
	case err != nil:
		return "", err
	case info.IsDir():
		return sanity.PathIsDir, nil
	case info.Mode().IsRegular():
		return sanity.PathIsFile, nil
	}
	return sanity.PathIsOther, nil
}
