package driver

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/causeway-csi/causeway/pkg/mounter"
)

// stripped replaces a secret in the log.
const stripped = "***"

// sensitiveWords mark a secret: if a key of a map contains such a word, its value is secret.
// Service account tokens come in the volume context, which the spec does not mark as secret.
var sensitiveWords = []string{"pass", "pwd", "secret", "token", "cred", "auth", "key", "cert", "private"}

func sensitive(key string) bool {
	key = strings.ToLower(key)
	return slices.ContainsFunc(sensitiveWords, func(w string) bool { return strings.Contains(key, w) })
}

// redacted returns a message as JSON without its secrets: fields that the spec marks with
// csi_secret, values of maps with a sensitive key, and mount flags that are not well known.
func redacted(m any) json.RawMessage {
	message, ok := m.(proto.Message)
	if !ok || message == nil || !message.ProtoReflect().IsValid() {
		return json.RawMessage("null")
	}
	text, err := json.Marshal(redactMessage(message.ProtoReflect()))
	if err != nil {
		text, _ = json.Marshal(err.Error())
	}
	return text
}

func redactMessage(m protoreflect.Message) map[string]any {
	fields := map[string]any{}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		fields[string(field.Name())] = redactField(field, value)
		return true
	})
	return fields
}

func redactField(field protoreflect.FieldDescriptor, value protoreflect.Value) any {
	secret := isSecret(field)
	switch {
	case field.IsMap():
		entries := map[string]any{}
		value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			if entries[key.String()] = stripped; !secret && !sensitive(key.String()) {
				entries[key.String()] = redactValue(field.MapValue(), value)
			}
			return true
		})
		return entries
	case secret:
		return stripped
	case field.IsList():
		items := make([]any, value.List().Len())
		for i := range items {
			items[i] = redactValue(field, value.List().Get(i))
			if field.Name() == "mount_flags" {
				items[i] = redactFlag(value.List().Get(i).String())
			}
		}
		return items
	}
	return redactValue(field, value)
}

func redactValue(field protoreflect.FieldDescriptor, value protoreflect.Value) any {
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return redactMessage(value.Message())
	case protoreflect.EnumKind:
		if v := field.Enum().Values().ByNumber(value.Enum()); v != nil {
			return string(v.Name())
		}
	}
	return value.Interface()
}

// redactFlag returns flag if it is a known flag, which never contains a secret.
func redactFlag(flag string) string {
	if !mounter.IsOption(flag) {
		return stripped
	}
	return flag
}

// isSecret reports whether the spec marks the field with csi_secret.
func isSecret(field protoreflect.FieldDescriptor) bool {
	options, ok := field.Options().(*descriptorpb.FieldOptions)
	return ok && options != nil && proto.GetExtension(options, csi.E_CsiSecret).(bool)
}

// scrubber removes the secrets of a request from texts. The errors of this driver contain no
// secrets, but an error of a library may.
type scrubber struct{ secrets []string }

// minSecret is the minimum length of a secret that scrub removes, in bytes. A shorter text is a
// part of many words.
const minSecret = 4

func newScrubber(req any) scrubber {
	message, ok := req.(proto.Message)
	if !ok || message == nil {
		return scrubber{}
	}
	var s scrubber
	s.collect(message.ProtoReflect())
	slices.SortFunc(s.secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return s
}

func (s *scrubber) collect(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		secret := isSecret(field)
		switch {
		case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
			value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				if secret || sensitive(key.String()) {
					s.add(value.String())
				}
				return true
			})
		case field.IsList() && field.Kind() == protoreflect.MessageKind:
			for i := range value.List().Len() {
				s.collect(value.List().Get(i).Message())
			}
		case field.Name() == "mount_flags":
			for i := range value.List().Len() {
				s.addFlag(value.List().Get(i).String())
			}
		case field.Kind() == protoreflect.MessageKind && !field.IsMap():
			s.collect(value.Message())
		case secret && field.Kind() == protoreflect.StringKind:
			s.add(value.String())
		}
		return true
	})
}

// addFlag adds a mount flag that may be a secret, and its value after the =.
func (s *scrubber) addFlag(flag string) {
	if redactFlag(flag) == flag {
		return
	}
	s.add(flag)
	if _, value, ok := strings.Cut(flag, "="); ok {
		s.add(value)
	}
}

// add adds a secret, unchanged and as %q prints it. If the secret is JSON, as service account
// tokens are, the strings in the JSON are secrets, too.
func (s *scrubber) add(secret string) {
	if len(secret) < minSecret {
		return
	}
	s.secrets = append(s.secrets, secret)
	if quoted := strconv.Quote(secret); quoted[1:len(quoted)-1] != secret {
		s.secrets = append(s.secrets, quoted[1:len(quoted)-1])
	}
	var inner any
	if strings.HasPrefix(secret, "{") && json.Unmarshal([]byte(secret), &inner) == nil {
		s.addInner(inner)
	}
}

func (s *scrubber) addInner(inner any) {
	switch v := inner.(type) {
	case string:
		s.add(v)
	case []any:
		for _, item := range v {
			s.addInner(item)
		}
	case map[string]any:
		for _, item := range v {
			s.addInner(item)
		}
	}
}

func (s scrubber) scrub(text string) string {
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, stripped)
	}
	return text
}
