package mounter

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/options"
)

// System has the mounts of an operating system.
type System struct {
	name  string
	kinds []Kind
	// options are the permitted mount options of every kind with a filesystem.
	options []string
	// fsTypes are the filesystems of an Image or BlockDevice, with their permitted options beside
	// options.
	fsTypes map[string][]string
	// labels: the option context gives an SELinux label to a filesystem of fsTypes.
	labels bool
	// share are the permitted options of a Share beside options: see options.Share.
	share map[string]*regexp.Regexp
	// remedies are the alternatives to options of a Share that another system has.
	remedies map[string]string
}

// Linux are the mounts of Linux. Options that name a device, a credential or another
// filesystem are not among them, nor those that weaken the guarantees of a filesystem, such as
// nobarrier or data=writeback. nodev is always set; nosuid is set unless the options have suid.
var Linux = System{
	name:    "Linux",
	kinds:   []Kind{Directory, Image, Disk, Device, BlockDevice, Share},
	options: options.Directory,
	fsTypes: options.Image,
	labels:  true,
	share:   options.Share,
}

// Windows are the mounts of Windows. The runtime of the containers enforces ro.
var Windows = System{
	name:    "Windows",
	kinds:   []Kind{Directory, Image, BlockDevice, Share},
	options: []string{"ro", "rw"},
	fsTypes: map[string][]string{options.NTFS: nil},
	share:   windowsShareOptions,
	remedies: map[string]string{
		"vers": "demand seal, which needs SMB 3",
		"sign": "demand seal, which also signs",
	},
}

// windowsShareOptions are the permitted options of a Share on Windows. seal has an effect: the
// mapping demands encryption. sec=ntlmssp selects a user and a password, which Windows always
// needs; it may log in by Kerberos with them. All others say how Linux shows, finds or caches
// files: they have no effect, so that a storage class can serve nodes of both systems.
//
// Options whose security Windows would silently not keep are not among them. guest and sec=krb5
// need a login that a mapping does not have. vers: Windows negotiates the newest dialect, but
// accepts SMB 2 from an old server. sign: a mapping of csi-proxy v2.0.0-alpha.2 cannot demand
// signatures. For both, seal is the remedy: it needs SMB 3, and encrypted messages are signed.
var windowsShareOptions = func() map[string]*regexp.Regexp {
	own := maps.Clone(options.Share)
	for _, name := range []string{"guest", "vers", "sign"} {
		delete(own, name)
	}
	own["sec"] = regexp.MustCompile(`^ntlmssp$`)
	return own
}()

// systems are the operating systems whose nodes a cluster can mix.
var systems = []System{Linux, Windows}

// Supports is Images.Supports of this system.
func (s System) Supports(k Kind, fsType string, options []string) error {
	switch _, isType := s.fsTypes[fsType]; {
	case !slices.Contains(s.kinds, k), k == BlockDevice && fsType == "" && !slices.Contains(s.kinds, Disk):
		return fmt.Errorf("%w: a volume of kind %q on %s", errors.ErrUnsupported, k, s.name)
	case k == Image && !isType, k == BlockDevice && fsType != "" && !isType:
		return fmt.Errorf("%w: the filesystem %.32q on %s", errors.ErrUnsupported, fsType, s.name)
	}
	return s.CheckOptions(errors.ErrUnsupported, k, fsType, options)
}

// CheckOptions returns an error that wraps kind for the first of options that a mount of kind k
// with this filesystem type may not have.
func (s System) CheckOptions(kind error, k Kind, fsType string, options []string) error {
	i := s.forbidden(k, fsType, options)
	if i < 0 {
		return nil
	}
	name, _, _ := strings.Cut(options[i], "=")
	if remedy, ok := s.remedies[name]; ok && k == Share {
		return fmt.Errorf("%w: mount %s on %s: %s", kind, optionAt(options, i), s.name, remedy)
	}
	return fmt.Errorf("%w: mount %s on %s, which has only: %s", kind, optionAt(options, i), s.name,
		s.optionNames(k, fsType))
}

// forbidden returns the index of the first of options that a mount of kind k with this filesystem
// type may not have; -1 if there is none.
func (s System) forbidden(k Kind, fsType string, options []string) int {
	return slices.IndexFunc(options, func(o string) bool { return !s.permits(k, fsType, o) })
}

// permits reports whether a mount of kind k with this filesystem type may have an option.
func (s System) permits(k Kind, fsType, option string) bool {
	switch {
	case k == Disk, k == Device, k == BlockDevice && fsType == "":
		return false
	case slices.Contains(s.options, option):
		return true
	case k == Share:
		return options.IsShare(s.share, option)
	case k == Directory:
		return false
	}
	_, isLabel := options.Label(option)
	return s.labels && isLabel || slices.Contains(s.fsTypes[fsType], option)
}

// optionNames returns the names of the permitted options, for an error.
func (s System) optionNames(k Kind, fsType string) string {
	switch {
	case k == Disk, k == Device, k == BlockDevice && fsType == "":
		return "none"
	case k == Share:
		return strings.Join(slices.Concat(s.options, options.ShareNames(s.share)), ", ")
	case k == Directory:
		return strings.Join(s.options, ", ")
	}
	names := slices.Concat(s.options, s.fsTypes[fsType])
	if s.labels {
		names = append(names, options.Context+"=")
	}
	return strings.Join(names, ", ")
}

// FSTypes are the filesystems that an Image may have on an operating system, sorted.
func FSTypes() []string {
	var all []string
	for _, s := range systems {
		all = slices.AppendSeq(all, maps.Keys(s.fsTypes))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// CheckFSType returns ErrFormat for a type outside of FSTypes.
func CheckFSType(fsType string) error {
	if all := FSTypes(); !slices.Contains(all, fsType) {
		return fmt.Errorf("%w: invalid filesystem type %.32q: must be one of %s", ErrFormat, fsType,
			strings.Join(all, ", "))
	}
	return nil
}

// optionAt is the option with an index in an error: its position, and its name if an option of
// shares has that name. Any other text can be a secret (CSI spec v1.13,
// VolumeCapability.mount_flags).
func optionAt(mountOptions []string, i int) string {
	at := fmt.Sprintf("option %d of %d", i+1, len(mountOptions))
	if name, _, _ := strings.Cut(mountOptions[i], "="); options.HasShare(name) {
		at += " (" + name + ")"
	}
	return at
}

// CheckOptions returns ErrOption for the first of mountOptions that a mount of kind k with this
// filesystem type may not have on any operating system; Images.Supports is about that of a node.
// The error has no value of an option, which can be a secret.
func CheckOptions(k Kind, fsType string, mountOptions []string) error {
	if k == Image || k == BlockDevice && fsType != "" {
		if err := CheckFSType(fsType); err != nil {
			return err
		}
	}
	known := false
	for _, s := range systems {
		known = known || slices.Contains(s.kinds, k)
	}
	if !known {
		return fmt.Errorf("%w: a mount of kind %q", errors.ErrUnsupported, k)
	}
	for i, o := range mountOptions {
		if _, isLabel := options.Label(o); isLabel && k == Directory {
			return fmt.Errorf("%w: %s: a directory shares the filesystem of other directories, and cannot have an "+
				"SELinux label of its own: seLinuxMount of the CSIDriver must be false",
				ErrOption, optionAt(mountOptions, i))
		}
		if !slices.ContainsFunc(systems, func(s System) bool {
			_, isType := s.fsTypes[fsType]
			return (isType || fsType == "") && s.permits(k, fsType, o)
		}) {
			return fmt.Errorf("%w: %s: must be one of, with a valid value: %s", ErrOption, optionAt(mountOptions, i),
				anyOptionNames(k, fsType))
		}
	}
	return nil
}

// anyOptionNames returns the names of the options of a mount on any operating system, for an error.
func anyOptionNames(k Kind, fsType string) string {
	for _, s := range systems {
		_, isType := s.fsTypes[fsType]
		if slices.Contains(s.kinds, k) && (isType || fsType == "") {
			return s.optionNames(k, fsType)
		}
	}
	return "none"
}

// IsOption reports whether an option is permitted for any kind: such an option is no secret.
func IsOption(option string) bool {
	for _, s := range systems {
		for _, own := range s.fsTypes {
			if slices.Contains(own, option) {
				return true
			}
		}
		if slices.Contains(s.options, option) || options.IsShare(s.share, option) {
			return true
		}
	}
	return false
}
