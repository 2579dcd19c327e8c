package definition

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// document is a file: its values as upstream sees them, and their lines.
type document struct {
	file            string
	json            []byte
	tree            any          // json, decoded, with numbers as stdjson.Number
	root            *yamlv3.Node // nil if only the values are known
	mistakes, notes []message
}

// message is about a value in a file. Line is 0 if unknown, path empty for the whole file.
type message struct {
	file, path, text string
	line             int
}

func (m message) String() string {
	at := m.file
	if m.line > 0 {
		at += ":" + strconv.Itoa(m.line)
	}
	if m.path != "" {
		at += ": " + m.path
	}
	return at + ": " + m.text
}

// open reads a file of YAML or JSON. The error is that the file cannot be read or has a syntax
// error.
func open(file string) (*document, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	doc := &document{file: file, json: data}
	if !stdjson.Valid(data) {
		if doc.json, err = yaml.YAMLToJSON(data); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	decoder := stdjson.NewDecoder(bytes.NewReader(doc.json))
	decoder.UseNumber()
	if err := decoder.Decode(&doc.tree); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	doc.locate(data)
	return doc, nil
}

// locate finds the lines of the values. A key that occurs twice and a second object are mistakes:
// upstream's reader ignores the first or the second.
func (doc *document) locate(data []byte) {
	decoder := yamlv3.NewDecoder(bytes.NewReader(data))
	for objects := 0; ; {
		var n yamlv3.Node
		if err := decoder.Decode(&n); err != nil {
			if !errors.Is(err, io.EOF) { // the values were read by another parser: they count
				doc.root = nil
			}
			return
		}
		content := n.Content[0]
		if content.Tag == "!!null" {
			continue
		}
		if objects++; objects > 1 {
			doc.add(&doc.mistakes, content.Line, "", "a second object: the file must have one")
			continue
		}
		doc.root = content
		doc.duplicates("", content)
	}
}

// duplicates reports each key that occurs twice in an object.
func (doc *document) duplicates(path string, n *yamlv3.Node) {
	seen := map[string]bool{}
	for i, child := range n.Content {
		switch {
		case n.Kind == yamlv3.SequenceNode:
			doc.duplicates(element(path, i), child)
		case n.Kind == yamlv3.MappingNode && i%2 == 0:
			if seen[child.Value] {
				doc.add(&doc.mistakes, child.Line, field(path, child.Value), "duplicate field")
			}
			seen[child.Value] = true
			doc.duplicates(field(path, child.Value), n.Content[i+1])
		}
	}
}

func field(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// line returns the line of the value at a path, or of the nearest value around it, or 0.
func (doc *document) line(path string) int {
	if doc.root == nil {
		return 0
	}
	return lineOf(doc.root, "", path, doc.root.Line)
}

// lineOf returns the line of the value at path below n, which is at prefix, or else nearest.
func lineOf(n *yamlv3.Node, prefix, path string, nearest int) int {
	if n.Alias != nil {
		n = n.Alias
	}
	for i, child := range n.Content {
		var at string
		switch {
		case n.Kind == yamlv3.SequenceNode:
			at = element(prefix, i)
		case n.Kind == yamlv3.MappingNode && i%2 == 0:
			at = field(prefix, child.Value)
		default:
			continue
		}
		rest, within := strings.CutPrefix(path, at)
		switch {
		case within && rest == "":
			return child.Line
		case within && (rest[0] == '.' || rest[0] == '['):
			if n.Kind == yamlv3.MappingNode {
				return lineOf(n.Content[i+1], at, path, child.Line)
			}
			return lineOf(child, at, path, child.Line)
		}
	}
	return nearest
}

// mistake reports that the value at a path is wrong. The first mistake at a path is enough: a value
// of a wrong type is invalid, too.
func (doc *document) mistake(path, format string, args ...any) {
	if slices.ContainsFunc(doc.mistakes, func(m message) bool { return m.path == path && m.file == doc.file }) {
		return
	}
	doc.add(&doc.mistakes, doc.line(path), path, format, args...)
}

// note reports that the value at a path has no effect.
func (doc *document) note(path, format string, args ...any) {
	doc.add(&doc.notes, doc.line(path), path, format, args...)
}

func (doc *document) add(to *[]message, line int, path, format string, args ...any) {
	*to = append(*to, message{doc.file, path, fmt.Sprintf(format, args...), line})
}

// reported returns messages as text, in the order of the lines: first this file's, then those of
// the files that it names.
func (doc *document) reported(all []message) []string {
	slices.SortStableFunc(all, func(a, b message) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			if a.file == doc.file || b.file != doc.file && c < 0 {
				return -1
			}
			return 1
		}
		return a.line - b.line
	})
	var text []string
	for _, m := range all {
		text = append(text, m.String())
	}
	return slices.Compact(text)
}

// err returns all mistakes as a single error, or nil.
func (doc *document) err() error {
	var errs []error
	for _, text := range doc.reported(doc.mistakes) {
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}
