package hostpath

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// schema is the part of a JSON schema that this test reads.
type schema struct {
	Properties map[string]*schema `json:"properties"`
	Additional json.RawMessage    `json:"additionalProperties"`
	AnyOf      []*schema          `json:"anyOf"`
	Enum       []any              `json:"enum"`
}

// property returns the schema of a path of properties. "*" stands for any name.
func (s *schema) property(t *testing.T, path ...string) *schema {
	t.Helper()
	for _, name := range path {
		next := s.Properties[name]
		if name == "*" {
			next = &schema{}
			if err := json.Unmarshal(s.Additional, next); err != nil {
				t.Fatal(err)
			}
			for _, option := range next.AnyOf {
				if option.Properties != nil {
					next = option
				}
			}
		}
		if next == nil {
			t.Fatalf("values.schema.json has no %q of %v", name, path)
		}
		s = next
	}
	return s
}

// documented returns the parameters in a section of docs/reference/parameters.md.
func documented(t *testing.T, section string) (keys []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "parameters.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ := strings.Cut(rest, "\n## ")
	table, _, _ := strings.Cut(text, "|\n\n") // the table of parameters comes first
	for _, row := range parameterRow.FindAllStringSubmatch(table, -1) {
		keys = append(keys, row[1])
	}
	if len(keys) == 0 {
		t.Errorf("parameters.md has no parameters in the section %s", section)
	}
	return keys
}

var parameterRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|")

// TestChartSchemaHasTheDriversParameters compares the parameters in the schema of the chart's
// values, and those in docs/reference/parameters.md, with the parameters of the driver: all names,
// and in the schema each value of an enumeration.
func TestChartSchemaHasTheDriversParameters(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "charts", "causeway", "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	root := &schema{}
	if err := json.Unmarshal(text, root); err != nil {
		t.Fatal(err)
	}
	mutable := slices.Collect(maps.Keys(knownMutable))
	class := func(key, value string) error {
		k := image
		if key == enforceKey {
			k = directory
		}
		parameters := map[string]string{kindKey: string(k), key: value}
		if _, err := planContent(backend.CreateOptions{Parameters: parameters}, nil); err != nil {
			return err
		}
		_, err := readParameters(parameters, k)
		return err
	}
	for _, c := range []struct {
		name   string
		path   []string
		keys   []string
		accept func(key, value string) error
	}{
		{"StorageClass", []string{"storageClasses", "*", "parameters"}, append(mutable,
			slices.DeleteFunc(slices.Clone(fixedParameters), func(key string) bool { return key == kindKey })...), class},
		{"VolumeAttributesClass", []string{"volumeAttributesClasses", "*"}, mutable, class},
		{"VolumeSnapshotClass", []string{"snapshotClass", "parameters"}, []string{consistencyKey},
			func(key, value string) error {
				_, err := snapshotParameters(map[string]string{key: value})
				return err
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := root.property(t, append([]string{"hostpath"}, c.path...)...).Properties
			if got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(slices.Values(c.keys)); !slices.Equal(got,
				want) {
				t.Errorf("the chart has %q, want %q", got, want)
			}
			for _, key := range documented(t, c.name) {
				if !slices.Contains(c.keys, key) && (key != kindKey || c.name != "StorageClass") {
					t.Errorf("parameters.md has %s in the section %s, the driver has not", key, c.name)
				}
			}
			for key, property := range found {
				if !slices.Contains(documented(t, c.name), key) && (c.name != "StorageClass" || !slices.Contains(mutable, key)) {
					t.Errorf("parameters.md has no %s in the section %s", key, c.name)
				}
				for _, value := range property.Enum {
					if err := c.accept(key, value.(string)); err != nil {
						t.Errorf("the chart accepts %s=%q, the driver does not: %v", key, value, err)
					}
				}
				if property.Enum != nil {
					if err := c.accept(key, "no such value"); err == nil {
						t.Errorf("the driver accepts %s=%q, which the chart rejects", key, "no such value")
					}
				}
			}
		})
	}
}
