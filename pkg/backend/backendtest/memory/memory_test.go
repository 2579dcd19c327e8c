package memory

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/backendtest"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// storage returns storage with room for everything.
func storage(t *testing.T) *Backend {
	return New(Config{Dir: t.TempDir(), Size: 1 << 40, Nodes: backendtest.Nodes, Limit: 16})
}

func TestMemoryKeepsTheContract(t *testing.T) {
	kind := backendtest.Kind{Mutable: map[string][2]string{tierKey: {"fast", "archive"}}, Groups: true, BlockGroups: true}
	backendtest.Run(t, kind, func(t *testing.T, _ mounter.Mounter) func() backend.Backend {
		b := storage(t)
		return func() backend.Backend { return b }
	})
}

// TestEveryInterfaceHasItsExample looks for every interface of package backend among those that memory.go says it has.
func TestEveryInterfaceHasItsExample(t *testing.T) {
	source, err := os.ReadFile("memory.go")
	if err != nil {
		t.Fatal(err)
	}
	contract, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "backend.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(contract, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if _, ok := spec.Type.(*ast.InterfaceType); !ok || spec.Name.Name == "NodeLocal" {
			return false
		}
		found++
		if !strings.Contains(string(source), "_ backend."+spec.Name.Name+" ") {
			t.Errorf("backend.%s has no example here: implement it, and add it to what a Backend is", spec.Name.Name)
		}
		return false
	})
	if found < 9 {
		t.Errorf("only %d interfaces were found", found)
	}
}

func TestAVolumeWhoseDirectoryIsGoneIsSick(t *testing.T) {
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

func TestWithoutItsDirectoryTheStorageIsNotReady(t *testing.T) {
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
	if v, err := b.Create(ctx, backend.CreateOptions{Name: "pvc-1"}); err == nil || len(b.volumes) > 0 || b.promised > 0 {
		t.Errorf("Create = %+v, %v, and there are %d volumes", v, err, len(b.volumes))
	}
}

func TestAnotherVolumeNeverSeesTheFilesOfADeletedOne(t *testing.T) {
	ctx := context.Background()
	b := storage(t)
	for range 2 {
		v, err := b.Create(ctx, backend.CreateOptions{Name: "pvc-1"})
		if err != nil {
			t.Fatal(err)
		}
		dir := b.volumes[v.ID].data.path
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("a new volume has %v, %v", entries, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(ctx, v.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
}
