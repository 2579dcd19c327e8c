package works

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// The rules in the CRDs refuse the objects that upstream's webhook refused, with the exceptions in
// the README beside the cases.
func TestTheCRDsRejectTheObjectsThatTheWebhookRejected(t *testing.T) {
	t.Parallel()
	files := must(filepath.Glob("../testdata/webhook/*.yaml"))(t)
	if len(files) < 50 {
		t.Fatalf("there are %d cases, which cannot be all", len(files))
	}
	client := must(dynamic.NewForConfig(world.Config()))(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c := readCase(t, file)
			name := strings.ReplaceAll(strings.ToLower(filepath.Base(file)), ".yaml", "")
			for i, o := range c.documents {
				o.SetName(o.GetName() + "-" + name)
				verb, err := send(t.Context(), client, o)
				if i == len(c.documents)-1 {
					c.check(t, verb, err)
				} else if err != nil {
					t.Fatalf("document %d is refused: %v", i+1, err)
				}
			}
		})
	}
}

// webhookCase is a file.
type webhookCase struct {
	refused, says string // both empty where the last document is accepted
	documents     []*unstructured.Unstructured
}

var comment = regexp.MustCompile(`(?m)^# (refused|says): (.*)$`)

func readCase(t *testing.T, file string) (c webhookCase) {
	t.Helper()
	text := must(os.ReadFile(file))(t)
	for _, m := range comment.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "refused" {
			c.refused = m[2]
		} else {
			c.says = m[2]
		}
	}
	if accepted := regexp.MustCompile(`(?m)^# accepted`).Match(text); accepted == (c.refused != "") {
		t.Fatalf("the file says neither or both of refused and accepted")
	}
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		one, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return c
		}
		o := &unstructured.Unstructured{}
		if err := errors.Join(err, yaml.Unmarshal(one, &o.Object)); err != nil {
			t.Fatal(err)
		}
		c.documents = append(c.documents, o)
	}
}

// send creates an object, or updates the object of its name: again, where a controller has written
// to it in between.
func send(ctx context.Context, client dynamic.Interface, o *unstructured.Unstructured) (verb string, err error) {
	kind := o.GroupVersionKind()
	plural := strings.ToLower(kind.Kind) + "s"
	if strings.HasSuffix(kind.Kind, "Class") {
		plural = strings.ToLower(kind.Kind) + "es"
	}
	resource := client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: plural})
	var at dynamic.ResourceInterface = resource
	if o.GetNamespace() != "" {
		at = resource.Namespace(o.GetNamespace())
	}
	for {
		there, err := at.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = at.Create(ctx, o, metav1.CreateOptions{})
			return "create", err
		}
		if err == nil {
			o.SetResourceVersion(there.GetResourceVersion())
			_, err = at.Update(ctx, o, metav1.UpdateOptions{})
		}
		if !apierrors.IsConflict(err) {
			return "update", err
		}
	}
}

// check compares the answer to the last document with the file.
func (c webhookCase) check(t *testing.T, verb string, err error) {
	t.Helper()
	switch {
	case c.refused == "" && err != nil:
		t.Errorf("good news: this is refused now: %v", err)
	case c.refused == "":
	case err == nil:
		t.Errorf("this is accepted, though it was to be refused at its %s", c.refused)
	case verb != c.refused || !strings.Contains(err.Error(), c.says):
		t.Errorf("the %s is refused with %q; it should be the %s, with %q", verb, fmt.Sprint(err), c.refused, c.says)
	}
}
