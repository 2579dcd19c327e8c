package definition

import (
	stdjson "encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// shape reports each value that does not fit its type, and each field that the type does not have.
// Names of fields are compared with their case, as upstream's decoder does. A null fits everything.
func (doc *document) shape(path string, value any, typ reflect.Type) {
	if value == nil {
		return
	}
	switch typ.Kind() {
	case reflect.Pointer:
		doc.shape(path, value, typ.Elem())
	case reflect.Struct:
		doc.shapeStruct(path, value, typ)
	case reflect.Map:
		object, ok := value.(map[string]any)
		if !ok {
			doc.wrongType(path, value, "an object")
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			doc.shape(field(path, key), object[key], typ.Elem())
		}
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			doc.wrongType(path, value, "a list")
		}
		for i, v := range list {
			doc.shape(element(path, i), v, typ.Elem())
		}
	case reflect.Interface:
	default:
		doc.shapeScalar(path, value, typ.Kind())
	}
}

func (doc *document) shapeStruct(path string, value any, typ reflect.Type) {
	object, ok := value.(map[string]any)
	if !ok {
		doc.wrongType(path, value, "an object")
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		at := field(path, key)
		if f, ok := typ.FieldByName(key); ok {
			doc.shape(at, object[key], f.Type)
			continue
		}
		if slices.Contains(retired, at) {
			doc.note(at, "retired field: it has no effect")
			continue
		}
		like, ok := typ.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, key) })
		if ok {
			doc.mistake(at, "unknown field: must be written %q", like.Name)
		} else {
			doc.mistake(at, "unknown field: must be one of %s", strings.Join(fieldsIn(typ), ", "))
		}
	}
}

func fieldsIn(typ reflect.Type) (names []string) {
	for f := range typ.Fields() {
		names = append(names, f.Name)
	}
	return names
}

func (doc *document) shapeScalar(path string, value any, kind reflect.Kind) {
	number, isNumber := value.(stdjson.Number)
	switch kind {
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			doc.wrongType(path, value, "true or false")
		}
	case reflect.String:
		if _, ok := value.(string); !ok {
			doc.wrongType(path, value, "a string; put it in quotes")
		}
	case reflect.Int, reflect.Int64:
		if _, err := strconv.ParseInt(string(number), 10, 64); !isNumber || err != nil {
			doc.wrongType(path, value, "an integer")
		}
	case reflect.Float64:
		if !isNumber {
			doc.wrongType(path, value, "a number")
		}
	default:
		// a new release; the test of the type fails, too
		panic("type of " + path + " in an upstream struct: " + kind.String())
	}
}

// wrongType reports a value that the decoder would reject.
func (doc *document) wrongType(path string, value any, want string) {
	got, err := stdjson.Marshal(value)
	if err != nil {
		got = []byte("?")
	}
	doc.mistake(path, "invalid value %s: must be %s", got, want)
}
