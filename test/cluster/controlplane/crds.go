package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// crds are where the API server keeps definitions of kinds.
var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// ApplyCRDs creates or updates the CustomResourceDefinitions in the YAML files at the top of dir,
// such as os.DirFS("config/crd"), and returns when the API server has established all of them and
// serves their kinds. Other kinds are left out, as such directories have a kustomization too.
// Errors: there is no definition; the API server's.
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
		_, err := client.Resource(crds).Apply(ctx, d.GetName(), d,
			meta.ApplyOptions{FieldManager: "causeway-test", Force: true})
		if err != nil {
			return fmt.Errorf("apply CRD %s: %w", d.GetName(), err)
		}
	}
	found, err := discovery.NewDiscoveryClientForConfig(p.admin)
	if err != nil {
		return err
	}
	for _, d := range definitions {
		if err := p.await(ctx, apiServer,
			func(ctx context.Context) error { return served(ctx, client, found, d.GetName()) }); err != nil {
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

// readFile returns the definitions in a file, which may have several documents.
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

// served returns nil if a definition's kind is served in all versions that it is to be. The API
// server reports that it is established a moment before that.
func served(ctx context.Context, client dynamic.Interface, found *discovery.DiscoveryClient, name string) error {
	o, err := client.Resource(crds).Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return err
	}
	var d definition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
		return err
	}
	if !slices.ContainsFunc(d.Status.Conditions,
		func(c meta.Condition) bool { return c.Type == "Established" && c.Status == meta.ConditionTrue }) {
		return fmt.Errorf("not established: %+v", d.Status.Conditions)
	}
	for _, v := range d.Spec.Versions {
		if !v.Served {
			continue
		}
		kinds, err := found.ServerResourcesForGroupVersionWithContext(ctx, d.Spec.Group+"/"+v.Name)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(kinds.APIResources,
			func(r meta.APIResource) bool { return r.Name == d.Spec.Names.Plural }) {
			return fmt.Errorf("%s is not served yet in %s", d.Spec.Names.Plural, kinds.GroupVersion)
		}
	}
	return nil
}

// definition has the fields of a CustomResourceDefinition that served reads. Its own type is in a
// module that no other code here needs.
type definition struct {
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Plural string `json:"plural"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		Conditions []meta.Condition `json:"conditions"`
	} `json:"status"`
}
