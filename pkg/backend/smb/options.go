package smb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/backend/smb/internal/records"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// withOutage returns options with those of the parameter outage. Errors: backend.ErrInvalid if
// options have the opposite.
func withOutage(options []string, outage string) ([]string, error) {
	add, opposite := []string{"soft"}, "hard"
	if outage == "wait" {
		// hard is a property of the kernel's session with the share: the first mount decides,
		// unless the mount has a connection of its own.
		add, opposite = []string{"hard", "nosharesock"}, "soft"
	}
	if slices.Contains(options, opposite) {
		return nil, fmt.Errorf("%w: the mount option %s contradicts the parameter outage=%s", backend.ErrInvalid,
			opposite, cmp.Or(outage, records.Choices[outageKey][0]))
	}
	options = slices.Clone(options)
	for _, o := range add {
		if !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	return options, nil
}

// has reports whether options have the option o, perhaps with another value.
func has(options []string, o string) bool {
	name, _, _ := strings.Cut(o, "=")
	return slices.ContainsFunc(options, func(other string) bool {
		n, _, _ := strings.Cut(other, "=")
		return n == name
	})
}

// checkAccess returns ErrInvalid for a use that no share supports.
func checkAccess(a backend.Access) error {
	switch {
	case a.Block:
		return fmt.Errorf("%w: a volume on a share cannot be a block device", backend.ErrInvalid)
	case a.FSType != "" && a.FSType != "cifs" && a.FSType != "smb3":
		return fmt.Errorf("%w: invalid filesystem type %.64q: must be empty or cifs", backend.ErrInvalid, a.FSType)
	}
	if err := mounter.CheckOptions(mounter.Share, "", a.Options); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	return nil
}

// kerberosOption is the mount option for Kerberos.
const kerberosOption = "sec=krb5"

// Options that a mount has unless a request has others, and where the system has them: a Windows
// node negotiates the dialect and the signatures with the server.
var defaultOptions = []string{"vers=3", "file_mode=0777", "dir_mode=0777"}
