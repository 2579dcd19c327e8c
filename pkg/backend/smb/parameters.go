package smb

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/client"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Parameters of a StorageClass.
const (
	sourceKey   = records.SourceKey   // //server[:port]/share[/directory]
	subDirKey   = records.SubDirKey   // directory of the volume, below the source; a template
	onDeleteKey = records.OnDeleteKey // also mutable
	encryptKey  = records.EncryptKey
	outageKey   = records.OutageKey
	existingKey = records.ExistingKey
)

const defaultSubDir = "${pv.metadata.name}"

// complete returns the parameters with defaults. Errors: backend.ErrInvalid.
func complete(parameters map[string]string) (map[string]string, error) {
	all := map[string]string{subDirKey: defaultSubDir}
	for key, values := range records.Choices {
		all[key] = values[0]
	}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		if err := checkParameter(key, value); err != nil {
			return nil, err
		}
		all[key] = value
	}
	if _, ok := all[sourceKey]; !ok {
		return nil, fmt.Errorf("%w: parameter source is missing: must be //server/share[/directory]",
			backend.ErrInvalid)
	}
	return all, nil
}

func checkParameter(key, value string) error {
	values, isChoice := records.Choices[key]
	switch {
	case isChoice && !slices.Contains(values, value):
		return fmt.Errorf("%w: invalid %s %.64q: must be %s", backend.ErrInvalid, key, value,
			strings.Join(values, " or "))
	case isChoice, key == sourceKey, key == subDirKey:
		return nil
	}
	return fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
}

// checkMutable returns ErrInvalid for mutable parameters that are unknown or invalid. An empty
// value is valid for Modify.
func checkMutable(parameters map[string]string, reset bool) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != onDeleteKey {
			return fmt.Errorf("%w: unknown mutable parameter %.64q", backend.ErrInvalid, key)
		}
		if value := parameters[key]; value != "" || !reset {
			if err := checkParameter(key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseSource parses a source.
func parseSource(source string) (mounter.ShareSource, error) {
	s, err := mounter.ParseShare(source)
	if err != nil {
		return s, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	for _, element := range append(strings.Split(s.Path, "/"), s.Share) {
		if strings.EqualFold(element, records.MetaDir) {
			return s, fmt.Errorf("%w: source %s: the name %s is reserved", backend.ErrInvalid, s, records.MetaDir)
		}
	}
	return s, nil
}

// variable matches a variable of a template.
var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// subDirOf returns the directory of a volume, below its source. Errors: backend.ErrInvalid.
func subDirOf(template string, o backend.CreateOptions, key string) (string, error) {
	var missing error
	values := map[string]string{
		"${pvc.metadata.name}": o.Claim.Name, "${pvc.metadata.namespace}": o.Claim.Namespace,
		"${pv.metadata.name}": o.Claim.Volume,
	}
	if template == defaultSubDir { // without the names of objects, the name of the request or its digest
		values[template] = cmp.Or(o.Claim.Volume, o.Name)
		if checkNewName(values[template]) != nil || len(values[template]) > maxDefaultName {
			values[template] = key
		}
	}
	subDir := variable.ReplaceAllStringFunc(template, func(v string) string {
		value, known := values[v]
		switch {
		case !known:
			missing = cmp.Or(missing, fmt.Errorf("%w: subDir %.128q: unknown variable %.64q", backend.ErrInvalid,
				template, v))
		case value == "":
			missing = cmp.Or(missing, fmt.Errorf("%w: subDir %.128q: the request has no value of %s: run the "+
				"provisioner with --extra-create-metadata", backend.ErrInvalid, template, v))
		}
		return value
	})
	if strings.Contains(variable.ReplaceAllString(template, ""), "${") {
		missing = fmt.Errorf("%w: invalid subDir %.128q: a variable is ${name}", backend.ErrInvalid, template)
	}
	if missing != nil {
		return "", missing
	}
	return subDir, checkElements(subDir, checkNewName)
}

// maxDefaultName is the maximum length in bytes of a directory that has the name of the request.
const maxDefaultName = 64

// checkSubDir returns ErrInvalid for a path that no volume may have.
func checkSubDir(subDir string) error { return checkElements(subDir, checkName) }

func checkElements(subDir string, check func(name string) error) error {
	for element := range strings.SplitSeq(subDir, "/") {
		if err := check(element); err != nil {
			return fmt.Errorf("%w: invalid subDir %.128q: %w", backend.ErrInvalid, subDir, err)
		}
	}
	return nil
}

// device matches the names that Windows reserves for devices, with any extension.
var device = regexp.MustCompile(`(?i)^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)([0-9¹²³]))( *\..*)?$`)

// windowsShortName matches the short names of Windows.
var windowsShortName = regexp.MustCompile(`^[^.]{1,6}~[0-9]{1,6}(\..{0,3})?$`)

// checkNewName is checkName for a new volume. It is stricter: earlier releases have made volumes
// that must stay usable.
func checkNewName(name string) error {
	switch {
	case client.IsShortName(name):
		return fmt.Errorf("%.64q has the form of a short name, and may name another file", name)
	case client.FoldName(name) == records.MetaDir:
		return fmt.Errorf("the name %s is reserved", records.MetaDir)
	}
	return checkName(name)
}

// checkName returns an error for a name that a directory of a volume must not have: one that
// Windows refuses, or the name of the records.
func checkName(name string) error {
	if err := mounter.CheckShareName(name); err != nil {
		return err
	}
	switch {
	case device.MatchString(name):
		return fmt.Errorf("%.64q is the name of a device on Windows", name)
	case windowsShortName.MatchString(name):
		return fmt.Errorf("%.64q has the form of a short name of Windows, and may name another file", name)
	case records.Fold(name) == records.MetaDir:
		return fmt.Errorf("the name %s is reserved", records.MetaDir)
	case strings.HasPrefix(name, " "):
		return fmt.Errorf("%.64q begins with a space", name)
	}
	return nil
}
