package win

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"

	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
)

// Tags of reparse points: a symbolic link, and a mount point of a volume or a junction.
// https://learn.microsoft.com/openspecs/windows_protocols/ms-fscc
const (
	tagSymlink    = 0xA000000C
	tagMountPoint = 0xA0000003
	// nameSurrogate is in the tag of a reparse point that leads to another file.
	nameSurrogate = 0x20000000
)

// parseReparse returns the tag of a reparse point, and, of a symbolic link or a mount point, the
// path to which it leads, as a program would write it. data is a REPARSE_DATA_BUFFER: the answer of
// FSCTL_GET_REPARSE_POINT.
func parseReparse(data []byte) (tag uint32, text string, err error) {
	if len(data) < 8 {
		return 0, "", fmt.Errorf("reparse point of %d bytes: too short", len(data))
	}
	tag = binary.LittleEndian.Uint32(data)
	length, body := int(binary.LittleEndian.Uint16(data[4:])), data[8:]
	if length > len(body) {
		return 0, "", fmt.Errorf("reparse point: cut off at %d of %d bytes", len(body), length)
	}
	body = body[:length]
	names := 8 // offsets and lengths of the substitute name and the print name
	switch tag {
	case tagSymlink:
		names += 4 // flags
	case tagMountPoint:
	default:
		return tag, "", nil
	}
	if len(body) < names {
		return 0, "", errors.New("reparse point: without its names")
	}
	// The kernel follows the substitute name. The print name is for people, and may be another.
	at, n := int(binary.LittleEndian.Uint16(body)), int(binary.LittleEndian.Uint16(body[2:]))
	if at%2 != 0 || n%2 != 0 || at+n > len(body)-names {
		return 0, "", errors.New("reparse point: a name outside of its data")
	}
	name := body[names+at : names+at+n]
	units := make([]uint16, len(name)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(name[2*i:])
	}
	return tag, userPath(string(utf16.Decode(units))), nil
}

// userPath returns a path of the kernel (\??\C:\…, \??\UNC\server\share) as a program writes it.
func userPath(name string) string {
	rest, ok := strings.CutPrefix(name, `\??\`)
	if !ok {
		return name
	}
	if unc, ok := strings.CutPrefix(rest, `UNC\`); ok {
		return `\\` + unc
	}
	return rest
}

// kindOf returns the kind of an entry from its attributes, and the tag and the text of its reparse
// point, if it has one.
func kindOf(isDir, isReparse bool, tag uint32, text string) links.EntryKind {
	switch {
	case isReparse && tag == tagSymlink && isDir:
		return links.DirLink
	case isReparse && tag == tagMountPoint && isDir && strings.HasPrefix(text, "Volume{"): // of another volume
		return links.PlainDir
	case isReparse && tag&nameSurrogate != 0:
		return links.OtherLink
	case isDir:
		return links.PlainDir
	}
	return links.PlainFile
}
