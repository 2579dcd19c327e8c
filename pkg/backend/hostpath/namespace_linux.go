package hostpath

import (
	"golang.org/x/sys/unix"

	"github.com/causeway-csi/causeway/internal/beneath"
)

// namespaceAttribute is the extended attribute of a volume's directory that holds the namespace of
// its claim. It is a hint for fair shares and not part of the record, whose format older releases
// read. The attribute is not synced and can be missing: then the volume counts as a tenant of its
// own.
const namespaceAttribute = "user.causeway.namespace"

// maxNamespace is the length of the longest name of a namespace: RFC 1123, DNS label.
const maxNamespace = 63

// setNamespace writes the namespace to a volume's directory, if the filesystem can store it.
func setNamespace(dir *beneath.Dir, namespace string) {
	if namespace == "" {
		return
	}
	f, err := dir.OpenDirFile(".")
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Fsetxattr(int(f.Fd()), namespaceAttribute, []byte(namespace), 0)
}

// namespaceOf returns the namespace of the volume's claim, or "".
func (s *root) namespaceOf(v *volume) string {
	dir, err := s.Dir().OpenDirFile(volumesDir + "/" + v.ID)
	if err != nil {
		return ""
	}
	defer dir.Close()
	var name [maxNamespace]byte
	n, err := unix.Fgetxattr(int(dir.Fd()), namespaceAttribute, name[:])
	if err != nil {
		return ""
	}
	return string(name[:n])
}
