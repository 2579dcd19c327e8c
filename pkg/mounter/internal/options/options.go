// Package options has the mount options that a volume may have, by the kinds of mounts and
// filesystems. It knows their texts only: CheckOptions of pkg/mounter applies them to a mount.
package options

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// NTFS is the filesystem of images and disks on Windows.
const NTFS = "ntfs"

// Directory are the permitted mount options of a Directory on Linux.
var Directory = []string{
	"ro", "rw", "exec", "noexec", "suid", "nosuid", "nodev",
	"relatime", "noatime", "nodiratime", "strictatime",
}

// Image are the permitted mount options of an Image on Linux beside Directory, by
// filesystem type.
var Image = map[string][]string{
	"ext4":  {"discard", "lazytime", "sync", "dirsync", "data=journal"},
	"xfs":   {"discard", "lazytime", "sync", "dirsync", "largeio"},
	"btrfs": {"discard", "sync", "dirsync", "autodefrag", "compress=zstd", "compress=lzo", "compress=zlib"},
}

// Share are the permitted options of a Share on Linux beside Directory: for each, the form of
// its value, or nil for an option without a value. Options that name a server, a credential or a
// file are not among them, nor those that weaken the consistency of the data. mount.cifs(8).
var Share = map[string]*regexp.Regexp{
	"uid": id32, "gid": id32, "cruid": id32,
	"file_mode": mode, "dir_mode": mode,
	"actimeo": seconds, "acregmax": seconds, "acdirmax": seconds, "closetimeo": seconds, "echo_interval": seconds,
	"rsize": bytes32, "wsize": bytes32,
	"cache":    regexp.MustCompile(`^(none|strict)$`),
	"vers":     regexp.MustCompile(`^(3|3\.0|3\.02|3\.1\.1)$`),
	"sec":      regexp.MustCompile(`^(krb5|ntlmssp)$`),
	Context:    labelForm,
	"forceuid": nil, "forcegid": nil, "noperm": nil, "mfsymlinks": nil, "nobrl": nil, "serverino": nil,
	"noserverino": nil, "seal": nil, "sign": nil, "soft": nil, "hard": nil, "nosharesock": nil, "guest": nil,
}

var (
	id32    = regexp.MustCompile(`^(0|[1-9][0-9]{0,8}|[1-3][0-9]{9})$`) // below 4,000,000,000
	mode    = regexp.MustCompile(`^0?[0-7]{3,4}$`)
	seconds = regexp.MustCompile(`^[0-9]{1,5}$`)
	bytes32 = regexp.MustCompile(`^[1-9][0-9]{3,7}$`)
)

// IsShare reports whether an option is one of those permitted.
func IsShare(permitted map[string]*regexp.Regexp, option string) bool {
	name, value, hasValue := strings.Cut(option, "=")
	if l, ok := Label(option); ok {
		value = l
	}
	form, ok := permitted[name]
	return ok && hasValue == (form != nil) && (form == nil || form.MatchString(value))
}

// ShareNames returns the names of permitted options, sorted, for an error.
func ShareNames(permitted map[string]*regexp.Regexp) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(permitted)) {
		if permitted[name] != nil {
			name += "="
		}
		names = append(names, name)
	}
	return names
}

// HasShare reports whether an option of shares has a name.
func HasShare(name string) bool {
	_, ok := Share[name]
	return ok
}

// Context is the mount option with the SELinux label of all files of a new filesystem. A
// directory cannot have the option: its bind mount shares a filesystem, with the labels in there. A
// Mounter does not compare labels of mounts, because the kernel shows them in a canonical form.
const Context = "context"

// labelForm is the form of an SELinux label: user, role, type, and at most a level with categories.
// It contains no quotes, and no character that would end an option but the comma.
var labelForm = regexp.MustCompile(`^[A-Za-z0-9_]+(:[A-Za-z0-9_.,-]+){2,4}$`)

// Label returns the label of an option context without quotes, and false for any other option. The
// kubelet passes the label in quotes, because of its commas: AddSELinuxMountOption in
// pkg/volume/util/selinux.go of Kubernetes.
func Label(option string) (string, bool) {
	value, ok := strings.CutPrefix(option, Context+"=")
	if inner, quoted := strings.CutPrefix(value, `"`); ok && quoted {
		value, ok = strings.CutSuffix(inner, `"`)
	}
	return value, ok && labelForm.MatchString(value)
}
