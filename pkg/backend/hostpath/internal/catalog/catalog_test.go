package catalog

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

type object struct {
	key      string
	reserved int64
	hidden   bool
	project  uint32
	source   string
}

func (o *object) Key() string      { return o.key }
func (o *object) Reserved() int64  { return o.reserved }
func (o *object) Listed() bool     { return !o.hidden }
func (o *object) Project() uint32  { return o.project }
func (o *object) VolumeID() string { return o.source }

var errDamaged = errors.New("damaged")

// filled returns a catalog with some objects of each kind.
func filled() *Catalog[*object, *object, *object] {
	c := new(Catalog[*object, *object, *object])
	c.Replace(Contents[*object, *object, *object]{
		Volumes: []*object{{key: "v3", reserved: 3}, {key: "v1", reserved: 1, project: 7},
			{key: "inline", reserved: 10, hidden: true}},
		Snapshots: []*object{{key: "s2", reserved: 20, source: "v1"}, {key: "s1", reserved: 40, source: "v1"},
			{key: "s3", reserved: 80, source: "gone"}},
		Groups:        []*object{{key: "g"}},
		BrokenVolumes: map[string]error{"v2": errDamaged}, BrokenSnapshots: map[string]error{"s0": errDamaged},
	})
	return c
}

func (c *Catalog[V, S, G]) page(after string, limit int) (keys []string) {
	c.VolumesAfter(after, func(key string, _ V, err error) bool {
		keys = append(keys, fmt.Sprint(key, err != nil))
		return len(keys) < limit
	})
	return keys
}

func (c *Catalog[V, S, G]) snapshotsOf(source, after string) (keys []string) {
	c.SnapshotsAfter(source, after, func(s S) bool { keys = append(keys, s.Key()); return true })
	return keys
}

func TestPagesAreInOrderWithoutHiddenVolumes(t *testing.T) {
	c := filled()
	for _, tc := range []struct {
		after string
		limit int
		want  []string
	}{{"", 10, []string{"v1false", "v2true", "v3false"}}, {"", 1, []string{"v1false"}}, {"v1", 10,
		[]string{"v2true", "v3false"}}, {"v2x", 10, []string{"v3false"}}, {"v3", 1, nil}} {
		if got := c.page(tc.after, tc.limit); !slices.Equal(got, tc.want) {
			t.Errorf("after %q: %v, want %v", tc.after, got, tc.want)
		}
	}
	for _, tc := range []struct {
		source, after string
		want          []string
	}{{"", "", []string{"s1", "s2", "s3"}}, {"v1", "", []string{"s1", "s2"}}, {"v1", "s1", []string{"s2"}}, {"v3", "",
		nil}} {
		if got := c.snapshotsOf(tc.source, tc.after); !slices.Equal(got, tc.want) {
			t.Errorf("snapshots of %q after %q: %v, want %v", tc.source, tc.after, got, tc.want)
		}
	}
}

func TestLookupErrors(t *testing.T) {
	c := filled()
	if v, err := c.Volume("inline"); err != nil || v.key != "inline" {
		t.Errorf("a hidden volume: %v, %v", v, err)
	}
	if _, err := c.Volume("v2"); !errors.Is(err, errDamaged) {
		t.Errorf("a broken volume: %v", err)
	}
	for _, err := range []error{second(c.Volume("s1")), second(c.Snapshot("v1")), second(c.Group("v1"))} {
		if !errors.As(err, new(*NotFound)) {
			t.Errorf("an unknown object: %v, want NotFound", err)
		}
	}
	c.BreakVolume("v1x", errDamaged)
	c.BreakSnapshot("s1x", errDamaged)
	c.BreakGroup("g1", errDamaged)
	if got := c.page("v1", 1); !slices.Equal(got, []string{"v1xtrue"}) ||
		!errors.Is(second(c.Snapshot("s1x")), errDamaged) || !errors.Is(second(c.Group("g1")), errDamaged) {
		t.Errorf("objects that broke are not found: %v", got)
	}
}

func second[T any](_ T, err error) error { return err }

func TestReservationsAddUp(t *testing.T) {
	c := filled()
	available := func(size int64) func(int64) int64 { return func(reserved int64) int64 { return size - reserved } }
	if c.Reserved() != 154 {
		t.Fatalf("%d bytes are reserved", c.Reserved())
	}
	if err := c.Reserve(7, available(160)); !errors.As(err, new(*Full)) || c.Reserved() != 154 {
		t.Errorf("Reserve = %v, and %d bytes are reserved", err, c.Reserved())
	}
	if err := c.Reserve(6, available(160)); err != nil || c.Reserved() != 160 {
		t.Errorf("Reserve = %v, and %d bytes are reserved", err, c.Reserved())
	}
	c.PutVolume(&object{key: "v0", reserved: 4, project: 9})
	c.Release(2)
	for _, key := range []string{"v1", "v0", "inline"} {
		v, _ := c.Volume(key)
		c.YieldProject(v)
		c.DropVolume(v)
	}
	s, _ := c.Snapshot("s1")
	c.DropSnapshot(s)
	if got := c.Stats(); got != (Stats{Volumes: 1, Snapshots: 2, Groups: 1, Broken: 2, Reserved: 103}) ||
		c.ProjectTaken(9) || c.ProjectTaken(7) {
		t.Errorf("Stats = %+v", got)
	}
	if got := c.snapshotsOf("v1", ""); !slices.Equal(got, []string{"s2"}) {
		t.Errorf("snapshots of v1: %v", got)
	}
}

func TestAProjectIsTakenWhileAVolumeHasIt(t *testing.T) {
	c := filled()
	v, _ := c.Volume("v1")
	if !c.ProjectTaken(7) || c.ProjectTaken(8) {
		t.Error("the projects are not those of the volumes")
	}
	c.YieldProject(v)
	if c.ProjectTaken(7) {
		t.Error("a project that was given up is taken")
	}
	c.PutVolume(v)
	if !c.ProjectTaken(7) {
		t.Error("the project of a volume that was put is free")
	}
}

func TestPutGroupAddsItsMembers(t *testing.T) {
	c := filled()
	c.PutGroup(&object{key: "h"}, &object{key: "s4", source: "v3"}, &object{key: "s5", source: "v1"})
	c.PutSnapshot(&object{key: "s6", source: "v3"})
	if got := append(c.snapshotsOf("v3", ""), c.snapshotsOf("v1", "s2")...); !slices.Equal(got,
		[]string{"s4", "s6", "s5"}) || second(c.Group("h")) != nil {
		t.Errorf("members %v, group %v", got, second(c.Group("h")))
	}
	c.DropGroup("h")
	if !errors.As(second(c.Group("h")), new(*NotFound)) || second(c.Snapshot("s4")) != nil {
		t.Error("DropGroup left the group, or removed a member")
	}
}

func TestReplaceRemovesTheOldObjects(t *testing.T) {
	c := filled()
	c.Replace(Contents[*object, *object, *object]{Volumes: []*object{{key: "new", reserved: 5}}})
	if got := c.Stats(); got != (Stats{Volumes: 1, Reserved: 5}) || c.ProjectTaken(7) || len(c.Volumes()) != 1 ||
		c.snapshotsOf("v1", "") != nil {
		t.Errorf("Stats = %+v, %d volumes", got, len(c.Volumes()))
	}
}
