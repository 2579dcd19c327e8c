package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// trims records the calls of Trim.
type trims struct {
	mu     sync.Mutex
	images []string
	result error
	freed  int64
}

func (r *trims) trim(_ context.Context, _, image string) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images = append(r.images, image)
	return r.freed, r.result
}

func (r *trims) count(image string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.images {
		if i == image {
			n++
		}
	}
	return n
}

// TestImagesAreTrimmed: each image with a filesystem is trimmed in each interval, and nothing else.
func TestImagesAreTrimmed(t *testing.T) {
	w := newWorld(t)
	r := &trims{freed: 5}
	b := w.open(func(c *Config) {
		c.Images = changed{Images: c.Images, trim: r.trim}
	})
	w.create(b, "directory")
	var images []string
	for _, name := range []string{"a", "b"} {
		v := w.createImage(b, name, backend.Access{})
		images = append(images, w.path(volumesDir, v.ID, "image.raw"))
	}
	if _, err := b.CreateInline(t.Context(), "csi-"+strings.Repeat("0", 64),
		backend.CreateOptions{Required: 1 << 20, Access: []backend.Access{{}},
			Parameters: map[string]string{kindKey: string(image)}}); err != nil {
		t.Fatal(err)
	}
	for _, v := range b.catalog.Volumes() {
		if v.Inline {
			images = append(images, w.path(volumesDir, v.ID, "image.raw"))
		}
	}
	w.createImage(b, "block", backend.Access{Block: true})
	if len(images) != 3 {
		t.Fatalf("the images are %q, want 3", images)
	}
	s, err := b.ready()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b.cfg.TrimInterval = 24 * time.Hour
		go b.trimImages(t.Context(), s)
		time.Sleep(firstTrim)
		for trims := range 3 {
			time.Sleep(time.Minute) // trimImages gives way to other calls
			for _, image := range images {
				if n := r.count(image); n != trims+1 {
					t.Errorf("%s was trimmed %d times, want %d", image, n, trims+1)
				}
			}
			time.Sleep(b.cfg.TrimInterval)
		}
	})
	for _, image := range r.images {
		if !slices.Contains(images, image) {
			t.Errorf("%s was trimmed", image)
		}
	}
	if got, want := b.count.trimmed.Load(), 5*int64(len(r.images)); got != want {
		t.Errorf("trimmed_bytes_total is %d, want %d", got, want)
	}
}

func (w *world) createImage(b *Backend, name string, a backend.Access) backend.Volume {
	w.Helper()
	v, err := b.Create(w.Context(), backend.CreateOptions{Name: name, Required: 1 << 20, Access: []backend.Access{a},
		Parameters: map[string]string{kindKey: string(image)}})
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// TestFailedTrims: an error is reported for each image, or for one if no image can be trimmed. A
// trim that gives way, and the trim of a deleted image, are no errors.
func TestFailedTrims(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		tried  int // images of two
		errors int64
	}{
		"stalled":     {mounter.ErrStalled, 2, 2},
		"unsupported": {fmt.Errorf("FITRIM: %w", errors.ErrUnsupported), 1, 1},
		"busy":        {mounter.ErrBusy, 2, 0},
		"deleted":     {fs.ErrNotExist, 2, 0},
		"silent":      {mounter.ErrNoAnswer, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := &trims{result: tt.err}
			var warnings []string
			b := w.open(func(c *Config) {
				c.Images = changed{Images: c.Images, trim: r.trim}
				c.Warn = func(_, reason, message string) { warnings = append(warnings, reason+": "+message) }
			})
			w.createImage(b, "a", backend.Access{})
			w.createImage(b, "b", backend.Access{})
			s, err := b.ready()
			if err != nil {
				t.Fatal(err)
			}
			b.trimOnce(t.Context(), s)
			if len(r.images) != tt.tried || b.count.trimErrors.Load() != tt.errors ||
				int64(len(warnings)) != tt.errors {
				t.Errorf("%d images were tried, %d errors, warnings %q", len(r.images), b.count.trimErrors.Load(), warnings)
			}
			for _, line := range warnings {
				if !strings.HasPrefix(line, "TrimFailed: ") || !strings.Contains(line, tt.err.Error()) {
					t.Errorf("the warning is %q", line)
				}
			}
		})
	}
}

// TestNothingIsTrimmedByDefault: without an interval no image is trimmed.
func TestNothingIsTrimmedByDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &trims{}
	b := w.open(func(c *Config) {
		c.Images = changed{Images: c.Images, trim: r.trim}
		c.Report = func(err error) { t.Errorf("a background task failed: %v", err) }
	})
	w.createImage(b, "a", backend.Access{})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if len(r.images) > 0 {
		t.Errorf("%q were trimmed", r.images)
	}
}

func TestInvalidTrimIntervals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, change := range map[string]func(*Config){
		"must not be negative": func(c *Config) { c.TrimInterval = -time.Second },
		"is for Linux":         func(c *Config) { c.TrimInterval, c.Images = time.Hour, virtualDisks{c.Images} },
	} {
		cfg := w.cfg
		change(&cfg)
		if b, err := New(cfg); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("New = %v, %v, want ErrInvalid with %q", b, err, name)
		}
	}
}
