package mounter

import (
	"regexp"
	"strings"
)

// contextOption is the mount option with the SELinux label of all files of a new filesystem. A
// directory cannot have the option: its bind mount shares a filesystem, with the labels in there. A
// Mounter does not compare labels of mounts, because the kernel shows them in a canonical form.
const contextOption = "context"

// label is the form of an SELinux label: user, role, type, and at most a level with categories. It
// contains no quotes, and no character that would end an option but the comma.
var label = regexp.MustCompile(`^[A-Za-z0-9_]+(:[A-Za-z0-9_.,-]+){2,4}$`)

// labelOf returns the label of an option context without quotes, and false for any other option. The
// kubelet passes the label in quotes, because of its commas: AddSELinuxMountOption in
// pkg/volume/util/selinux.go of Kubernetes.
func labelOf(option string) (string, bool) {
	value, ok := strings.CutPrefix(option, contextOption+"=")
	if inner, quoted := strings.CutPrefix(value, `"`); ok && quoted {
		value, ok = strings.CutSuffix(inner, `"`)
	}
	return value, ok && label.MatchString(value)
}
