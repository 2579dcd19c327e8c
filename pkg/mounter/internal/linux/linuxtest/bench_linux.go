package linuxtest

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

// Eternity is a limit that no test reaches, unless the test is stalled.
const Eternity = mountercontract.Eternity

// Bench is a bench with a Host of Linux.
type Bench struct{ *mountercontract.Bench }

// NewBench returns a bench with a Host, for a single test.
func NewBench(t *testing.T, newHost func(dir string) mounter.Host) *Bench {
	b := &Bench{mountercontract.NewBench(t, newHost)}
	b.IsOfOthers = b.isOfOthers
	return b
}

var loopDevice = regexp.MustCompile(`/dev/(loop[0-9]+)\b`)

// isOfOthers reports whether a loop device that does not answer has no file of this bench.
func (b *Bench) isOfOthers(err error) bool {
	if !errors.Is(err, mounter.ErrNoAnswer) {
		return false
	}
	found := loopDevice.FindStringSubmatch(err.Error())
	return found != nil && !slices.Contains(b.Loops(), "/sys/block/"+found[1]+"/loop/backing_file")
}

// contractBench returns newBench as the suites of the contract take it.
func contractBench(newBench func(t *testing.T) *Bench) func(t *testing.T) *mountercontract.Bench {
	return func(t *testing.T) *mountercontract.Bench { return newBench(t).Bench }
}

// Contract tests the contract of every Host.
func Contract(t *testing.T, newBench func(t *testing.T) *Bench) {
	mountercontract.TestMounter(t, contractBench(newBench))
}

// ImageContract tests the contract of every Host for images that image makes.
func ImageContract(
	t *testing.T, newBench func(t *testing.T) *Bench, image func(b *Bench, name, fsType string) mounter.Mount,
) {
	mountercontract.TestImages(t, contractBench(newBench), func(b *mountercontract.Bench, name,
		fsType string) mounter.Mount {
		return image(&Bench{b}, name, fsType)
	})
}

// ContractOfImageFiles tests the contract of every Host for the making and growing of images.
func ContractOfImageFiles(t *testing.T, newBench func(t *testing.T) *Bench, fsTypes ...string) {
	mountercontract.TestImageFiles(t, contractBench(newBench), fsTypes...)
}

// LinuxFSTypes are the filesystems that an Image may have on Linux.
func LinuxFSTypes() []string { return mountercontract.LinuxFSTypes() }

// Failing is that of the Host, without the images of other tests: the Host's is of the whole
// machine. Whether a device uses the page cache depends on the disk.
func (b *Bench) Failing() (map[string]mounter.Failure, error) {
	all, err := b.Host.Failing()
	maps.DeleteFunc(all, func(image string, f mounter.Failure) bool {
		return f.Kind == mounter.PageCached ||
			!strings.HasPrefix(image, b.Storage+"/") && !strings.HasPrefix(image, b.Kubelet+"/")
	})
	return all, err
}

// Answered calls until the error is not ErrNoAnswer, and returns it.
func Answered(t *testing.T, call func() error) error { return mountercontract.Answered(t, call) }

// Mkdir makes a directory, and its parents.
func Mkdir(t *testing.T, path string) { mountercontract.MakeDir(t, path) }

// Exists reports whether a file is at a path.
func Exists(path string) bool { return mountercontract.Exists(path) }

// SparseCopy copies a file without its holes.
func SparseCopy(from, to string) error { return mountercontract.SparseCopy(from, to) }

// Nothing copies nothing during a freeze.
func Nothing(context.Context) error { return nil }
