package hostpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

func imageOptions(name string, parameters, mutable map[string]string) backend.CreateOptions {
	o := backend.CreateOptions{Name: name, Access: []backend.Access{{}},
		Parameters: map[string]string{kindKey: string(image)}, Mutable: mutable}
	maps.Copy(o.Parameters, parameters)
	return o
}

func TestSettingsAreStoredAppliedAndReset(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	var tuned []mounter.Mount
	w.cfg.Images = changed{Images: w.cfg.Images, tune: func(_ context.Context, m mounter.Mount) error {
		tuned = append(tuned, m)
		return nil
	}}
	b := w.open()
	v, err := b.Create(ctx, imageOptions("v", map[string]string{"readahead": "128Ki", "label": "class"},
		map[string]string{"label": "created"}))
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		change map[string]string
		want   map[string]string
	}{
		{nil, map[string]string{"readahead": "131072", "label": "created", "direct-io": "true",
			"enforce": "preferred"}},
		{map[string]string{"readahead": "1Mi"},
			map[string]string{"readahead": "1048576", "label": "created", "direct-io": "true", "enforce": "preferred"}},
		{map[string]string{"direct-io": "false", "label": "ü 漢 👩‍🚀"},
			map[string]string{"readahead": "1048576", "label": "ü 漢 👩‍🚀", "direct-io": "false",
				"enforce": "preferred"}},
		{map[string]string{"readahead": "", "label": "", "direct-io": ""},
			map[string]string{"readahead": "131072", "label": "class", "direct-io": "true", "enforce": "preferred"}},
	} {
		if step.change != nil {
			if err := b.Modify(ctx, v.ID, step.change, nil); err != nil {
				t.Fatal(err)
			}
			if len(tuned) != i {
				t.Errorf("after %v the mount was changed %d times, want %d", step.change, len(tuned), i)
			}
		}
		b = w.restart(b)
		got, err := b.Get(ctx, v.ID, nil)
		if err != nil || !maps.Equal(got.Mutable, step.want) {
			t.Errorf("after %v the parameters are %v, %v, want %v", step.change, got.Mutable, err, step.want)
		}
	}
	m, err := b.Mount(ctx, v.ID, backend.Access{})
	if err != nil || m.ReadAhead != 131072 || m.Buffered {
		t.Errorf("Mount = %+v, %v", m, err)
	}
	if err := b.Modify(ctx, v.ID, map[string]string{"direct-io": "false"}, nil); err != nil ||
		!tuned[len(tuned)-1].Buffered {
		t.Errorf("%v, %+v, want a buffered mount", err, tuned[len(tuned)-1])
	}
}

func TestInvalidSettingsAreRejected(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t)
	b := w.open()
	directory := w.create(b, "directory")
	disk, err := b.Create(ctx, imageOptions("image", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	type setting struct {
		id         string
		parameters map[string]string
	}
	wrong := map[string]setting{
		"an unknown key":             {disk.ID, map[string]string{"color": "blue"}},
		"an unknown and a known key": {disk.ID, map[string]string{"label": "x", "color": "blue"}},
		"a kind":                     {disk.ID, map[string]string{"kind": "directory"}},
		"readahead of a directory":   {directory.ID, map[string]string{"readahead": "1Mi"}},
		"direct I/O of a directory":  {directory.ID, map[string]string{"direct-io": "true"}},
		"no number":                  {disk.ID, map[string]string{"readahead": "much"}},
		"an odd number":              {disk.ID, map[string]string{"readahead": "4097"}},
		"too large a number":         {disk.ID, map[string]string{"readahead": "2Gi"}},
		"not a boolean":              {disk.ID, map[string]string{"direct-io": "yes"}},
		"an image without a limit":   {disk.ID, map[string]string{"enforce": "off"}},
		"no such enforcement":        {directory.ID, map[string]string{"enforce": "please"}},
		"a label with a line feed":   {disk.ID, map[string]string{"label": "a\nb"}},
		"a label that is not UTF-8":  {disk.ID, map[string]string{"label": "a\xffb"}},
		"a label that is too long":   {disk.ID, map[string]string{"label": strings.Repeat("ü", maxLabel/2) + "x"}},
	}
	for _, c := range "\u007f\u0080\u0085\u009b\u009f\u061c\u200e\u200f\u2028\u2029" +
		"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff" {
		wrong[fmt.Sprintf("a label with %U", c)] = setting{disk.ID, map[string]string{"label": "a" + string(c) + "b"}}
	}
	for name, tc := range wrong {
		t.Run(name, func(t *testing.T) {
			before, _ := b.Get(ctx, tc.id, nil)
			if err := b.Modify(ctx, tc.id, tc.parameters, nil); !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("Modify = %v, want ErrInvalid", err)
			}
			if after, _ := b.Get(ctx, tc.id, nil); !maps.Equal(before.Mutable, after.Mutable) {
				t.Errorf("the parameters were %v and are %v", before.Mutable, after.Mutable)
			}
			o := backend.CreateOptions{Name: "new", Access: []backend.Access{{}}, Parameters: before.Parameters,
				Mutable: tc.parameters}
			if _, err := b.Create(ctx, o); !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("Create = %v, want ErrInvalid", err)
			}
		})
	}
}

// TestInlineVolumesHaveNoParameters: the author of a pod chooses only the kind. All other
// parameters are those of an administrator.
func TestInlineVolumesHaveNoParameters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	handle := "csi-" + strings.Repeat("0", 64)
	for key, value := range map[string]string{"enforce": "off", "direct-io": "false", "readahead": "1Gi", "label": "x",
		"consistency": "none"} {
		o := imageOptions("", map[string]string{key: value}, nil)
		want := fmt.Sprintf("unknown attribute %q of an inline volume: must be size or kind", key)
		if v, err := b.CreateInline(context.Background(), handle, o); !errors.Is(err, backend.ErrInvalid) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", key, v, err, want)
		}
	}
	if _, err := b.CreateInline(context.Background(), handle, imageOptions("", nil, nil)); err != nil {
		t.Errorf("with only a kind: %v", err)
	}
}

// TestTheChartHasTheSizesOfTheDriver: the chart's policy for inline volumes has the default size,
// for volumes without a size, and the smallest sizes of images.
func TestTheChartHasTheSizesOfTheDriver(t *testing.T) {
	t.Parallel()
	policy, err := os.ReadFile("../../../charts/causeway/templates/hostpath/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("quantity('%dGi')", defaultSize>>30),
		fmt.Sprintf("quantity(!has(v.csi.fsType) ? '%[1]dMi' : v.csi.fsType == 'xfs' ? '%dMi' : v.csi.fsType == "+
			"'btrfs' ? '%dMi' : '%[1]dMi')", minSizes["ext4"]>>20, minSizes["xfs"]>>20, minSizes["btrfs"]>>20),
	} {
		if !strings.Contains(string(policy), want) {
			t.Errorf("the policy does not have %s", want)
		}
	}
}

// TestFirstUnknownParameterIsNamed: the error for several unknown parameters is the same in each
// attempt.
func TestFirstUnknownParameterIsNamed(t *testing.T) {
	t.Parallel()
	unknown := map[string]string{}
	for i := range 10 {
		unknown[fmt.Sprintf("unknown-%d", i)] = "x"
	}
	for name, call := range map[string]func() error{
		"volume": func() error {
			_, err := planContent(backend.CreateOptions{Parameters: unknown}, nil)
			return err
		},
		"modify":   func() error { return onlyMutable(unknown) },
		"snapshot": func() error { _, err := snapshotParameters(unknown); return err },
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				if err := call(); err == nil || !strings.Contains(err.Error(), `"unknown-0"`) {
					t.Fatalf("error %v, want unknown-0", err)
				}
			}
		})
	}
}
