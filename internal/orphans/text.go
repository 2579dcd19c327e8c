package orphans

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/causeway-csi/causeway/pkg/volumeid"
)

// Kinds of objects that name volumes and snapshots.
const (
	volumeKind  = "PersistentVolume"
	contentKind = "VolumeSnapshotContent"
	groupKind   = "VolumeGroupSnapshotContent"
)

// endMark must follow the objects. kubectl prints valid JSON also if a later part of a list failed.
// Its exit code tells, and `kubectl get … && echo complete` passes that on.
const endMark = "complete"

// text is the stream of objects. It is parsed while it is read, as the objects of a large cluster
// exceed the memory of a small container.
type text struct {
	ids    map[string]bool // of all objects of the driver; true: named
	kinds  map[string]int  // objects
	finder volumeid.Finder
	begin  []byte // data that was read ahead
}

func newText(h *held) *text {
	t := &text{ids: map[string]bool{}, kinds: map[string]int{}}
	for _, v := range h.volumes {
		t.ids[key(v.ID)] = false
	}
	for _, s := range h.snapshots {
		t.ids[key(s.ID)] = false
	}
	for _, g := range h.groups {
		t.ids[key(g.id)] = false
		for _, s := range g.snapshots {
			t.ids[key(s.ID)] = false
		}
	}
	t.finder.Found = func(id []byte) {
		if _, ok := t.ids[string(id)]; ok {
			t.ids[string(id)] = true
		}
	}
	return t
}

// lacks returns the reason why a kind of objects gives no result, or "" if objects of the kind were
// read.
func (t *text) lacks(kind, flag string) string {
	if t.kinds[kind] > 0 {
		return ""
	}
	return fmt.Sprintf("there is no %s on stdin: if the cluster has none, say %s", kind, flag)
}

// first waits for the first byte, or the end, of the objects.
func (t *text) first(r io.Reader) error {
	b := make([]byte, 1)
	switch n, err := io.ReadFull(r, b); {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("%w: read stdin: %w", ErrNoConclusion, err)
	default:
		t.begin = b[:n]
		return nil
	}
}

// read reads all objects: JSON objects and lists in a row.
func (t *text) read(r io.Reader) error {
	r = io.TeeReader(io.MultiReader(bytes.NewReader(t.begin), r), &t.finder)
	dec := json.NewDecoder(r)
	for n := 0; ; n++ {
		if !dec.More() {
			return cutShort(dec, n)
		}
		if !startsObject(dec.Buffered()) {
			return t.end(io.MultiReader(dec.Buffered(), r), n)
		}
		if err := t.document(dec); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: stdin ends in the middle of the JSON: did kubectl get fail?", ErrNoConclusion)
		} else if err != nil {
			return fmt.Errorf("%w: stdin, byte %d: %w", ErrNoConclusion, dec.InputOffset(), err)
		}
	}
}

// startsObject reports whether the next character of JSON is that of an object.
func startsObject(r io.Reader) bool {
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, b); err != nil {
			return false
		}
		if len(bytes.TrimSpace(b)) > 0 {
			return b[0] == '{'
		}
	}
}

// cutShort returns the error of a stdin that ends after n documents without the mark.
func cutShort(dec *json.Decoder, n int) error {
	if _, err := dec.Token(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: read stdin: %w", ErrNoConclusion, err)
	}
	if n == 0 {
		return fmt.Errorf("%w: stdin is empty: did kubectl get fail, or was kubectl exec run without -i?",
			ErrNoConclusion)
	}
	return fmt.Errorf("%w: stdin does not end with a line that says %s, so kubectl may have failed half-way: run it "+
		"as (sleep 60; kubectl get … -o json && echo %s)",
		ErrNoConclusion, endMark, endMark)
}

// end reads the text after the objects. It must be the mark.
func (t *text) end(r io.Reader, documents int) error {
	rest, err := io.ReadAll(io.LimitReader(r, 1<<10))
	said := strings.TrimSpace(string(rest))
	switch {
	case err != nil:
		return fmt.Errorf("%w: read stdin: %w", ErrNoConclusion, err)
	case said == endMark && documents > 0:
		return nil
	case said == endMark:
		return fmt.Errorf("%w: stdin holds no objects", ErrNoConclusion)
	case strings.HasPrefix(said, "apiVersion:"), strings.HasPrefix(said, "---"), strings.HasPrefix(said,
		"items:"), strings.HasPrefix(said, "kind:"):
		return fmt.Errorf("%w: stdin is YAML: run kubectl get with -o json", ErrNoConclusion)
	}
	return fmt.Errorf("%w: stdin is not the output of kubectl get -o json: %.100q", ErrNoConclusion, said)
}

// document reads an object, or a list of objects.
func (t *text) document(dec *json.Decoder) error {
	var kind string
	var metadata struct {
		Continue  string `json:"continue"`
		Remaining int64  `json:"remainingItemCount"`
	}
	var items map[string]int
	err := fields(dec, func(key string) error {
		switch key {
		case "kind":
			return dec.Decode(&kind)
		case "metadata":
			return dec.Decode(&metadata)
		case "items":
			var err error
			items, err = kindsOf(dec)
			return err
		}
		return dec.Decode(new(json.RawMessage))
	})
	switch {
	case err != nil:
		return err
	case kind == "":
		return errors.New("the JSON has no kind: it is no object of Kubernetes")
	case kind == "Status":
		return errors.New("it is an error of the API server, not a list")
	case metadata.Continue != "" || metadata.Remaining != 0:
		return errors.New("the list goes on elsewhere (metadata.continue): read it as a whole")
	case items == nil:
		t.kinds[kind]++
	}
	for of, n := range items {
		if of == "" { // the items of a list of a single kind may leave the kind out
			of = strings.TrimSuffix(kind, "List")
		}
		t.kinds[of] += n
	}
	return nil
}

// fields reads a JSON object, and calls value for each key to read its value.
func fields(dec *json.Decoder, value func(key string) error) error {
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok {
			return fmt.Errorf("%v is no key", token)
		}
		if err := value(key); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return err
}

// kindsOf reads a list and returns the number of objects of each kind. A null list has none.
func kindsOf(dec *json.Decoder) (map[string]int, error) {
	kinds := map[string]int{}
	switch open, err := dec.Token(); {
	case err != nil || open == nil:
		return kinds, err
	case open != json.Delim('['):
		return nil, errors.New("items is no list")
	}
	for dec.More() {
		var item struct {
			Kind string `json:"kind"`
		}
		if err := dec.Decode(&item); err != nil {
			return nil, err
		}
		kinds[item.Kind]++
	}
	_, err := dec.Token()
	return kinds, err
}
