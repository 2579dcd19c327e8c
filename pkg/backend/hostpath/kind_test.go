package hostpath

import (
	"errors"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// TestKinds: a backend for images makes an image where the kind is not named, and rejects
// directories. It serves a directory that exists, and makes no copy of it.
func TestKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.open()
	access := []backend.Access{{}}
	createOld := func() (backend.Volume, error) {
		return b.Create(t.Context(), backend.CreateOptions{Name: "old", Required: 1 << 20, Access: access})
	}
	createInline := func() (backend.Volume, error) {
		return b.CreateInline(t.Context(), "csi-"+strings.Repeat("0", 64),
			backend.CreateOptions{Required: 1 << 20, Access: access})
	}
	old, err := createOld()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := createInline(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = w.open(func(c *Config) { c.Kinds = []string{"image"} })
	if _, err := b.Mount(t.Context(), old.ID, backend.Access{}); err != nil {
		t.Errorf("an old directory: %v", err)
	}
	for name, again := range map[string]func() (backend.Volume, error){"Create": createOld, "CreateInline": createInline} {
		if v, err := again(); err != nil || name == "Create" && v.ID != old.ID {
			t.Errorf("a repeated %s of an old directory: %+v, %v", name, v, err)
		}
	}
	o := backend.CreateOptions{Name: "directory", Parameters: map[string]string{"kind": "directory"}, Access: access}
	for name, create := range map[string]func() (backend.Volume, error){
		"a directory": func() (backend.Volume, error) { return b.Create(t.Context(), o) },
		"a clone of a directory": func() (backend.Volume, error) {
			return b.Clone(t.Context(), old.ID, backend.CreateOptions{Name: "clone", Access: access})
		},
	} {
		if _, err := create(); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "--kinds") {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if c, err := b.Capacity(t.Context(), backend.CreateOptions{Parameters: map[string]string{"kind": "directory"},
		Access: access}); err != nil || c.Available != 0 {
		t.Errorf("the capacity for directories is %d, %v", c.Available, err)
	}
	for _, parameters := range []map[string]string{nil, {"kind": "image"}} {
		if c, err := b.Capacity(t.Context(), backend.CreateOptions{Parameters: parameters, Access: access}); err != nil ||
			c.Available == 0 {
			t.Errorf("the capacity with %v is %d, %v", parameters, c.Available, err)
		}
		for range 2 {
			v, err := b.Create(t.Context(), backend.CreateOptions{Name: "image", Parameters: parameters, Access: access})
			if err != nil {
				t.Fatalf("%v: %v", parameters, err)
			}
			if m, err := b.Mount(t.Context(), v.ID, backend.Access{}); err != nil || m.FSType != "ext4" {
				t.Errorf("it has the filesystem %q, %v", m.FSType, err)
			}
		}
	}
	w.cfg.Kinds = []string{"file"}
	if _, err := New(w.cfg); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("an unknown kind: %v", err)
	}
}
