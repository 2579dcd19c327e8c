package copier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf16"
)

// Formats of Windows that Tree reads there. They are parsed here, so that every system tests it.
// https://learn.microsoft.com/openspecs/windows_protocols/ms-fscc

// Tags of reparse points that are links: symbolic links, and junctions and mount points of volumes.
const (
	tagSymlink    = 0xA000000C
	tagMountPoint = 0xA0000003
)

// volumePrefix begins the name of a mount point of a volume (\??\Volume{…}\), in UTF-16.
var volumePrefix = encode(`\??\Volume{`)

// encode returns a text as UTF-16.
func encode(text string) (data []byte) {
	for _, u := range utf16.Encode([]rune(text)) {
		data = binary.LittleEndian.AppendUint16(data, u)
	}
	return data
}

// checkLink returns an error unless a REPARSE_DATA_BUFFER is a symbolic link or a junction.
func checkLink(data []byte) error {
	if len(data) < 8 {
		return errors.New("a reparse point that is cut off")
	}
	tag := binary.LittleEndian.Uint32(data)
	switch {
	case tag != tagSymlink && tag != tagMountPoint:
		return fmt.Errorf("a reparse point with the tag %#x, which cannot be copied", tag)
	case tag == tagMountPoint && bytes.Contains(data, volumePrefix):
		return errors.New("another volume is mounted here: its data is not part of the volume")
	}
	return nil
}

// parseStreams returns the names in a list of FILE_STREAM_INFO.
func parseStreams(data []byte) (names []string, err error) {
	const head = 24 // offset of the next, length of the name, two sizes
	for {
		if len(data) < head {
			return nil, errors.New("a list of streams that is cut off")
		}
		next, n := int(binary.LittleEndian.Uint32(data)), int(binary.LittleEndian.Uint32(data[4:]))
		if n%2 != 0 || n > len(data)-head {
			return nil, errors.New("a stream whose name is cut off")
		}
		units := make([]uint16, n/2)
		for i := range units {
			units[i] = binary.LittleEndian.Uint16(data[head+2*i:])
		}
		names = append(names, string(utf16.Decode(units)))
		if next == 0 {
			return names, nil
		}
		if next < head+n || next > len(data) {
			return nil, errors.New("a list of streams with an invalid offset")
		}
		data = data[next:]
	}
}
