package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// crds are where the API server keeps definitions of kinds.
var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// ApplyCRDs creates or updates the CustomResourceDefinitions in the YAML files at the top of dir, such as
// os.DirFS("config/crd"), and returns when the API server has established all of them. Other kinds are left out, as such
// directories have a kustomization too. Errors: there is no definition; the API server's.
func (p *Plane) ApplyCRDs(ctx context.Context, dir fs.FS) error {
	definitions, err := readCRDs(dir)
	if err != nil {
		return fmt.Errorf("read CRDs: %w", err)
	}
	client, err := dynamic.NewForConfig(p.admin)
	if err != nil {
		return err
	}
	for _, d := range definitions {
		_, err := client.Resource(crds).Apply(ctx, d.GetName(), d, meta.ApplyOptions{FieldManager: "causeway-test", Force: true})
		if err != nil {
			return fmt.Errorf("apply CRD %s: %w", d.GetName(), err)
		}
	}
	for _, d := range definitions {
		if err := established(ctx, client, d.GetName()); err != nil {
			return fmt.Errorf("CRD %s: %w", d.GetName(), err)
		}
	}
	return nil
}

// readCRDs returns all definitions in the YAML files of dir.
func readCRDs(dir fs.FS) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if ext := path.Ext(e.Name()); e.IsDir() || ext != ".yaml" && ext != ".yml" {
			continue
		}
		some, err := readFile(dir, e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, errors.New("there are none")
	}
	return all, nil
}

// readFile returns the definitions in one file, which may have several documents.
func readFile(dir fs.FS, name string) ([]*unstructured.Unstructured, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []*unstructured.Unstructured
	for documents := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		d := &unstructured.Unstructured{}
		err := documents.Decode(&d.Object)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		if d.GetKind() == "CustomResourceDefinition" {
			found = append(found, d)
		}
	}
}

// established waits until the API server serves a definition's kind, or says that it won't.
func established(ctx context.Context, client dynamic.Interface, name string) error {
	for {
		d, err := client.Resource(crds).Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return err
		}
		if condition(d, "Established") {
			return nil
		}
		select {
		case <-ctx.Done():
			conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
			return fmt.Errorf("not established: %w: %v", ctx.Err(), conditions)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// condition reports whether an object's condition is true.
func condition(o *unstructured.Unstructured, kind string) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions") // an odd one isn't true
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return m["status"] == "True"
		}
	}
	return false
}
