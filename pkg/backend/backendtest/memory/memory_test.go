package memory

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// storage returns a Backend with enough capacity for every test.
func storage(t *testing.T) *Backend {
	return New(Config{Dir: t.TempDir(), Size: 1 << 40, Nodes: backendtest.Nodes, Limit: 16})
}

func TestMemoryKeepsTheContract(t *testing.T) {
	kind := backendtest.Kind{
		Mutable: map[string][2]string{tierKey: {"fast", "archive"}}, Groups: true, BlockGroups: true,
	}
	backendtest.Run(t, kind, func(t *testing.T, _ mounter.Images) func() backend.Backend {
		b := storage(t)
		return func() backend.Backend { return b }
	})
}

// shared is a Backend whose directories are on a share.
type shared struct{ *Backend }

const shareOfTest = "//server/share"

func (s shared) Mount(ctx context.Context, id string, a backend.Access) (mounter.Mount, error) {
	m, err := s.Backend.Mount(ctx, id, a)
	if err == nil && m.Kind == mounter.Directory {
		m.Kind, m.Source = mounter.Share, shareOfTest+m.Source
	}
	return m, err
}

func TestSharesKeepTheContract(t *testing.T) {
	kind := backendtest.Kind{
		Mutable: map[string][2]string{tierKey: {"fast", "archive"}}, Groups: true, BlockGroups: true,
		Files: func(m mounter.Mount) string { return strings.TrimPrefix(m.Source, shareOfTest) },
	}
	backendtest.Run(t, kind, func(t *testing.T, _ mounter.Images) func() backend.Backend {
		b := shared{storage(t)}
		return func() backend.Backend { return b }
	})
}

func TestMemoryKeepsTheContractOfAttachedDisks(t *testing.T) {
	kind := backendtest.Kind{
		Mutable: map[string][2]string{tierKey: {"fast", "archive"}}, Groups: true, BlockGroups: true,
	}
	backendtest.Run(t, kind, func(t *testing.T, _ mounter.Images) func() backend.Backend {
		b := storage(t)
		b.cfg.Attached = true
		return func() backend.Backend { return b }
	})
}

// TestMemoryImplementsEveryInterface compares the interfaces of package backend with the assertions
// in memory.go.
func TestMemoryImplementsEveryInterface(t *testing.T) {
	source, err := os.ReadFile("memory.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	// Memory is neither the storage of a node nor that of a server that nodes mount: package driver
	// tests those.
	others := []string{"NodeLocal", "Reacher", "Grouper"}
	found := 0
	for _, file := range files {
		contract, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(contract, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if _, ok := spec.Type.(*ast.InterfaceType); !ok || slices.Contains(others, spec.Name.Name) {
				return false
			}
			found++
			if !strings.Contains(string(source), "_ backend."+spec.Name.Name+" ") {
				t.Errorf("backend.%s is missing from the assertions in memory.go: implement it", spec.Name.Name)
			}
			return false
		})
	}
	if found < 15 {
		t.Errorf("found %d interfaces, want at least 15", found)
	}
}

func TestVolumeWithoutDirectoryIsUnhealthy(t *testing.T) {
	ctx := context.Background()
	b := storage(t)
	var ids []string
	for _, name := range []string{"one", "two", "three"} {
		v, err := b.Create(ctx, backend.CreateOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.ID)
	}
	for _, id := range ids[:2] {
		if err := os.Remove(b.volumes[id].data.path); err != nil {
			t.Fatal(err)
		}
		if c, err := b.Health(ctx, id); err != nil || len(c) != 1 || c[0].Severity != backend.DataLoss {
			t.Errorf("Health = %v, %v", c, err)
		}
	}
	page, more, err := b.ListHealth(ctx, "", 1)
	if err != nil || !more || len(page) != 1 {
		t.Fatalf("ListHealth = %v, %v, %v", page, more, err)
	}
	rest, more, err := b.ListHealth(ctx, page[0].ID, 1)
	if err != nil || more || len(rest) != 1 || rest[0].ID == page[0].ID || rest[0].ID == ids[2] {
		t.Errorf("ListHealth after %s = %v, %v, %v", page[0].ID, rest, more, err)
	}
}

func TestStorageWithoutDirectoryIsNotReady(t *testing.T) {
	ctx := context.Background()
	b := storage(t)
	if err := os.Remove(b.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	if ready, err := b.Probe(ctx); ready || err == nil {
		t.Errorf("Probe = %v, %v", ready, err)
	}
	if c, err := b.StorageHealth(ctx); err != nil || len(c) != 1 || c[0].Severity != backend.Inaccessible {
		t.Errorf("StorageHealth = %v, %v", c, err)
	}
	v, err := b.Create(ctx, backend.CreateOptions{Name: "pvc-1"})
	if err == nil || len(b.volumes) > 0 || b.reserved > 0 {
		t.Errorf("Create = %+v, %v with %d volumes and %d reserved bytes, want an error and none",
			v, err, len(b.volumes), b.reserved)
	}
}

func TestNewVolumeHasNoFilesOfADeletedVolume(t *testing.T) {
	ctx := context.Background()
	b := storage(t)
	for range 2 {
		v, err := b.Create(ctx, backend.CreateOptions{Name: "pvc-1"})
		if err != nil {
			t.Fatal(err)
		}
		dir := b.volumes[v.ID].data.path
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("a new volume has the entries %v, %v, want none", entries, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(ctx, v.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailedCopyLeavesNothing(t *testing.T) {
	ctx := context.Background()
	b := storage(t)
	var ids []string
	for _, block := range []bool{false, true} {
		v, err := b.Create(ctx, backend.CreateOptions{
			Name: fmt.Sprint(block), Required: 1 << 20, Access: []backend.Access{{Block: block}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.ID)
	}
	kept, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: "kept", Source: ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []data{b.volumes[ids[0]].data, b.volumes[ids[1]].data, b.snapshots[kept.ID].data} {
		if err := os.Remove(d.path); err != nil {
			t.Fatal(err)
		}
	}
	before := fmt.Sprint(b.reserved, len(b.volumes), len(b.snapshots))
	for _, id := range ids {
		_, err1 := b.Snapshot(ctx, backend.SnapshotOptions{Name: "new", Source: id})
		_, err2 := b.SnapshotGroup(ctx, backend.GroupOptions{Name: "new", Sources: ids})
		_, err3 := b.Clone(ctx, id, backend.CreateOptions{Name: "new", Access: []backend.Access{{Block: id == ids[1]}}})
		_, err4 := b.Restore(ctx, kept.ID, backend.CreateOptions{Name: "new"})
		if err1 == nil || err2 == nil || err3 == nil || err4 == nil {
			t.Errorf("Snapshot, SnapshotGroup, Clone and Restore = %v, %v, %v, %v, want errors", err1, err2, err3, err4)
		}
	}
	left, err := os.ReadDir(b.cfg.Dir)
	after := fmt.Sprint(b.reserved, len(b.volumes), len(b.snapshots))
	if after != before || err != nil || len(left) != 0 {
		t.Errorf("reserved bytes, volumes and snapshots are %s, want %s; the directory has %v, %v, want nothing",
			after, before, left, err)
	}
}

func TestAllocatedAndDeltaReportOnlyChangedPieces(t *testing.T) {
	ctx := context.Background()
	b := storage(t)
	v, err := b.Create(ctx, backend.CreateOptions{
		Name: "pvc-1", Required: 1 << 20, Access: []backend.Access{{Block: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var snapshots []string
	for i, text := range []string{"", "one", "two"} {
		disk, err := os.OpenFile(b.volumes[v.ID].data.path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := disk.WriteAt([]byte(text), int64(3*i*piece)); err != nil {
			t.Fatal(err)
		}
		disk.Close()
		s, err := b.Snapshot(ctx, backend.SnapshotOptions{Name: text + "!", Source: v.ID})
		if err != nil {
			t.Fatal(err)
		}
		snapshots = append(snapshots, s.ID)
	}
	ranges := func(report func(each func(offset, length int64) error) error) (found []int64) {
		t.Helper()
		if err := report(func(offset, length int64) error {
			found = append(found, offset, length)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	allocated := ranges(func(each func(offset, length int64) error) error {
		return b.Allocated(ctx, snapshots[2], 0, nil, each)
	})
	changed := ranges(func(each func(offset, length int64) error) error {
		return b.Delta(ctx, snapshots[1], snapshots[2], 0, nil, each)
	})
	wantAllocated, wantChanged := []int64{3 * piece, piece, 6 * piece, piece}, []int64{6 * piece, piece}
	if !slices.Equal(allocated, wantAllocated) || !slices.Equal(changed, wantChanged) {
		t.Errorf("Allocated reports %v, want %v; Delta reports %v, want %v",
			allocated, wantAllocated, changed, wantChanged)
	}
}
