package backendtest

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// modifier is a subject with a backend.Modifier.
type modifier struct {
	*subject
	backend.Modifier
}

func modifying(s *subject) *modifier {
	s.Helper()
	m := &modifier{s, optional[backend.Modifier](s)}
	if len(s.kind.Mutable) == 0 {
		s.Fatal("the backend is a Modifier: set Kind.Mutable")
	}
	return m
}

// reopen closes the backend and opens the storage again, like a new process.
func (m *modifier) reopen() {
	m.Helper()
	m.subject.reopen()
	m.Modifier = m.Backend.(backend.Modifier)
}

// modify sets a mutable parameter.
func (m *modifier) modify(id, key, value string) {
	m.Helper()
	if err := m.Modify(context.Background(), id, map[string]string{key: value}, nil); err != nil {
		m.Fatalf("Modify(%q, %s=%q): %v", id, key, value, err)
	}
}

// want checks that Get and List return the volume was with these mutable parameters.
func (m *modifier) want(was backend.Volume, mutable map[string]string) {
	m.Helper()
	was.Mutable = mutable
	if got, err := m.Get(context.Background(), was.ID, nil); err != nil || !reflect.DeepEqual(got, was) {
		m.Errorf("Get = %+v, %v, want %+v", got, err, was)
	}
	if l, ok := m.Backend.(backend.Lister); ok {
		all, _, err := l.List(context.Background(), "", 1<<20)
		if i := slices.IndexFunc(all, func(v backend.Volume) bool { return v.ID == was.ID }); i < 0 ||
			!reflect.DeepEqual(all[i], was) {
			m.Errorf("List = %+v, %v, want %+v among them", all, err, was)
		}
	}
}

// but returns a copy of the map with another value for key.
func but(of map[string]string, key, value string) map[string]string {
	other := maps.Clone(of)
	other[key] = value
	return other
}

func modifies(s *subject) {
	m := modifying(s)
	v, other := m.create(m.request("pvc-1")), m.create(m.request("pvc-2"))
	for key, values := range m.kind.Mutable {
		if unchanged, ok := v.Mutable[key]; !ok || slices.Contains(values[:], unchanged) || values[0] == values[1] {
			m.Fatalf("%s is %q (present: %v) in a new volume, want two other values in Kind.Mutable, not %q", key,
				unchanged, ok, values)
		}
		for _, value := range []string{values[0], values[0], values[1], values[0]} {
			m.modify(v.ID, key, value)
			m.want(v, but(v.Mutable, key, value))
		}
		m.reopen()
		m.want(v, but(v.Mutable, key, values[0]))
		if again := m.create(m.request("pvc-1")); again.ID != v.ID || again.Mutable[key] != values[0] {
			m.Errorf("the same Create without %s = %+v, want the modified volume", key, again)
		}
		for range 2 {
			m.modify(v.ID, key, "")
			m.want(v, v.Mutable)
		}
	}
	all := map[string]string{}
	for key, values := range m.kind.Mutable {
		all[key] = values[1]
	}
	if err := m.Modify(context.Background(), v.ID, all, nil); err != nil {
		m.Fatal(err)
	}
	now := maps.Clone(v.Mutable)
	maps.Copy(now, all)
	m.want(v, now)
	m.want(other, other.Mutable)
}

// createsMutable creates volumes with mutable parameters.
func createsMutable(s *subject) {
	m := modifying(s)
	unchanged := m.create(m.request("pvc-0")).Mutable
	for key, values := range m.kind.Mutable {
		o := m.request("pvc-1")
		o.Mutable = map[string]string{key: values[0]}
		v := m.create(o)
		m.want(v, but(unchanged, key, values[0]))
		if again := m.create(o); !reflect.DeepEqual(again, v) {
			m.Errorf("the second Create = %+v, want %+v", again, v)
		}
		o.Mutable = map[string]string{key: values[1]}
		m.refused(o, backend.ErrExists)
		m.modify(v.ID, key, "")
		m.want(v, unchanged)
		m.delete(v.ID)

		o.Parameters = m.with(key, values[1])
		if _, err := m.Create(context.Background(), o); errors.Is(err, backend.ErrInvalid) {
			continue // the key is valid only as a mutable parameter
		}
		m.delete(m.create(o).ID)
		o.Mutable[key] = values[0]
		v = m.create(o)
		m.want(v, but(unchanged, key, values[0])) // the mutable parameter takes precedence
		o.Parameters = maps.Clone(m.kind.Parameters)
		m.refused(o, backend.ErrExists)
		m.modify(v.ID, key, "")
		m.want(v, but(unchanged, key, values[1]))
		m.delete(v.ID)
	}
}

func copiesMutable(c *copier) {
	m := modifying(c.subject)
	v := m.create(m.request("pvc-1"))
	source := c.sourceOf(v.ID)
	for key, values := range m.kind.Mutable {
		o := m.request("copy of " + key)
		o.Mutable = map[string]string{key: values[0]}
		m.want(c.copy(source, o), but(v.Mutable, key, values[0]))
		o.Mutable = map[string]string{key: values[1]}
		c.refusedCopy(source, o, backend.ErrExists)
	}
	o := m.request("copy")
	o.Mutable = map[string]string{"color-of-it": "blue"}
	c.refusedCopy(source, o, backend.ErrInvalid)
}

func modifyRefused(s *subject) {
	m := modifying(s)
	ctx := context.Background()
	v := m.create(m.request("pvc-1"))
	o := m.request("pvc-2")
	o.Mutable = map[string]string{"color-of-it": "blue"}
	if err := m.refused(o, backend.ErrInvalid); !strings.Contains(err.Error(), "color-of-it") {
		m.Errorf("%v does not name the parameter", err)
	}
	for key, values := range m.kind.Mutable {
		for _, bad := range []map[string]string{
			{"color-of-it": "blue"}, {"color-of-it": ""},
			{key: values[0], "color-of-it": "blue"}, {key: values[0], strings.ToUpper(key): values[0]},
		} {
			if err := m.Modify(ctx, v.ID, bad, nil); !errors.Is(err, backend.ErrInvalid) {
				m.Errorf("Modify(%q) = %v, want ErrInvalid", bad, err)
			}
			m.want(v, v.Mutable)
		}
		unknown := append(unusual(v.ID), "", "\x00", v.ID+"\x00", strings.Repeat("x", 4096))
		if b, ok := s.Backend.(backend.Inliner); ok {
			handle := "csi-" + strings.Repeat("0", 64)
			if _, err := b.CreateInline(ctx, handle,
				backend.CreateOptions{Access: []backend.Access{{}}, Parameters: s.inline()}); err != nil {
				m.Fatal(err)
			}
			unknown = append(unknown, handle)
		}
		for _, id := range unknown {
			if err := m.Modify(ctx, id, map[string]string{key: values[0]}, nil); !errors.Is(err, backend.ErrNotFound) {
				m.Errorf("Modify(%.60q) = %v, want ErrNotFound", id, err)
			}
		}
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		want := v.Mutable
		if err := m.Modify(canceled, v.ID, map[string]string{key: values[0]}, nil); err == nil {
			want = but(want, key, values[0])
		} else if !errors.Is(err, context.Canceled) {
			m.Errorf("a canceled Modify = %v, want the error of the context", err)
		}
		m.want(v, want)
		m.modify(v.ID, key, "")
	}
}
