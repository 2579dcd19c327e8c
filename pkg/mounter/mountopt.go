// Package mountopt has the mount options that a volume may have, by the kinds of mounts and
// filesystems. It knows their texts only: CheckOptions of pkg/mounter applies them to a mount.
package mounter

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ntfs is the filesystem of images and disks on Windows.
const ntfs = "ntfs"

// directoryOptions are the permitted mount options of a Directory on Linux.
var directoryOptions = []string{
	"ro", "rw", "exec", "noexec", "suid", "nosuid", "nodev",
	"relatime", "noatime", "nodiratime", "strictatime",
}

// imageOptions are the permitted mount options of an Image on Linux beside directoryOptions, by
// filesystem type.
var imageOptions = map[string][]string{
	"ext4":  {"discard", "lazytime", "sync", "dirsync", "data=journal"},
	"xfs":   {"discard", "lazytime", "sync", "dirsync", "largeio"},
	"btrfs": {"discard", "sync", "dirsync", "autodefrag", "compress=zstd", "compress=lzo", "compress=zlib"},
}

// shareOptions are the permitted options of a Share on Linux beside directoryOptions: for each, the form of
// its value, or nil for an option without a value. Options that name a server, a credential or a
// file are not among them, nor those that weaken the consistency of the data. mount.cifs(8).
var shareOptions = map[string]*regexp.Regexp{
	"uid": id32, "gid": id32, "cruid": id32,
	"file_mode": mode, "dir_mode": mode,
	"actimeo": seconds, "acregmax": seconds, "acdirmax": seconds, "closetimeo": seconds, "echo_interval": seconds,
	"rsize": bytes32, "wsize": bytes32,
	"cache":       regexp.MustCompile(`^(none|strict)$`),
	"vers":        regexp.MustCompile(`^(3|3\.0|3\.02|3\.1\.1)$`),
	"sec":         regexp.MustCompile(`^(krb5|ntlmssp)$`),
	contextOption: label,
	"forceuid":    nil, "forcegid": nil, "noperm": nil, "mfsymlinks": nil, "nobrl": nil, "serverino": nil,
	"noserverino": nil, "seal": nil, "sign": nil, "soft": nil, "hard": nil, "nosharesock": nil, "guest": nil,
}

var (
	id32    = regexp.MustCompile(`^(0|[1-9][0-9]{0,8}|[1-3][0-9]{9})$`) // below 4,000,000,000
	mode    = regexp.MustCompile(`^0?[0-7]{3,4}$`)
	seconds = regexp.MustCompile(`^[0-9]{1,5}$`)
	bytes32 = regexp.MustCompile(`^[1-9][0-9]{3,7}$`)
)

// isShareOption reports whether an option is one of those permitted.
func isShareOption(permitted map[string]*regexp.Regexp, option string) bool {
	name, value, hasValue := strings.Cut(option, "=")
	if l, ok := labelOf(option); ok {
		value = l
	}
	form, ok := permitted[name]
	return ok && hasValue == (form != nil) && (form == nil || form.MatchString(value))
}

// shareOptionNames returns the names of permitted options, sorted, for an error.
func shareOptionNames(permitted map[string]*regexp.Regexp) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(permitted)) {
		if permitted[name] != nil {
			name += "="
		}
		names = append(names, name)
	}
	return names
}

// hasShareOption reports whether an option of shares has a name.
func hasShareOption(name string) bool {
	_, ok := shareOptions[name]
	return ok
}

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
