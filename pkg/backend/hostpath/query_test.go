package hostpath

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// failingImages are Images of which no size can be read.
type failingImages struct {
	mounter.Images
	err *error
}

func (i failingImages) ImageSize(path string) (int64, error) {
	if *i.err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: *i.err}
	}
	return i.Images.ImageSize(path)
}

func TestAShortageIsNoConditionOfAVolume(t *testing.T) {
	t.Parallel()
	var failure error
	b := newWorld(t, func(c *Config) { c.Images = failingImages{c.Images, &failure} }).open()
	v, err := b.Create(t.Context(), imageOptions("v", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, failure = range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if c, err := b.Health(t.Context(), v.ID); !errors.Is(err, failure) || len(c) > 0 {
			t.Errorf("%v: Health = %+v, %v, want this error only", failure, c, err)
		}
		if sick, _, err := b.ListHealth(t.Context(), "", 10); !errors.Is(err, failure) || len(sick) > 0 {
			t.Errorf("%v: ListHealth = %+v, %v, want this error only", failure, sick, err)
		}
	}
	failure = syscall.EIO
	if c, err := b.Health(t.Context(), v.ID); err != nil || len(c) != 1 || c[0].Reason != "DataUnreadable" {
		t.Errorf("the health of a volume on a disk with errors is %+v, %v, want DataUnreadable", c, err)
	}
}
