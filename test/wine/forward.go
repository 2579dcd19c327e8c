package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
)

// Positions in the DLL, in bytes: of its only section in memory, relative to the image base, and in
// the file. Both are a multiple of the alignment of their kind.
const (
	memoryAlignment = 0x1000
	fileAlignment   = 0x200
	sectionAddress  = memoryAlignment
	sectionOffset   = fileAlignment // after all headers
	peOffset        = 0x40          // of the signature PE, after the DOS header
)

// imageBase is the address that the DLL prefers. Without code, it has no relocations to apply
// elsewhere.
const imageBase = 0x180000000

// exportDirectory is IMAGE_EXPORT_DIRECTORY. Addresses are relative to the image base.
type exportDirectory struct {
	Characteristics, TimeDateStamp uint32
	MajorVersion, MinorVersion     uint16
	Name                           uint32 // address of the name of the DLL
	Base                           uint32 // number of the first function
	NumberOfFunctions              uint32
	NumberOfNames                  uint32
	AddressOfFunctions             uint32 // of a table with the address of each function
	AddressOfNames                 uint32 // of a table with the address of each name, sorted
	AddressOfNameOrdinals          uint32 // of a table with the index of the function of each name
}

// forwarder returns a DLL for amd64 called dll without code, whose only function, called name, is
// the function target of another DLL: "library.Function". The loader follows such a forwarder.
func forwarder(dll, name, target string) []byte {
	exports := exportSection(dll, name, target)
	padded := align(len(exports), fileAlignment)
	var image bytes.Buffer
	write := func(part any) { // a buffer takes everything
		if err := binary.Write(&image, binary.LittleEndian, part); err != nil {
			panic(fmt.Sprintf("write a %T: %v", part, err))
		}
	}
	dos := [peOffset]byte{0: 'M', 1: 'Z', peOffset - 4: peOffset} // ends with the offset of PE
	write(dos)
	write([]byte("PE\x00\x00"))
	write(pe.FileHeader{
		Machine:              pe.IMAGE_FILE_MACHINE_AMD64,
		NumberOfSections:     1,
		SizeOfOptionalHeader: uint16(binary.Size(pe.OptionalHeader64{})),
		Characteristics: pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE |
			pe.IMAGE_FILE_DLL,
	})
	header := pe.OptionalHeader64{
		Magic:                 0x20b, // PE32+
		SizeOfInitializedData: uint32(padded),
		ImageBase:             imageBase,
		SectionAlignment:      memoryAlignment,
		FileAlignment:         fileAlignment,
		// The first version of Windows for amd64 that Go supports is newer.
		MajorOperatingSystemVersion: 6,
		MajorSubsystemVersion:       6,
		SizeOfImage:                 uint32(sectionAddress + align(len(exports), memoryAlignment)),
		SizeOfHeaders:               sectionOffset,
		Subsystem:                   pe.IMAGE_SUBSYSTEM_WINDOWS_GUI,
		DllCharacteristics:          pe.IMAGE_DLLCHARACTERISTICS_DYNAMIC_BASE | pe.IMAGE_DLLCHARACTERISTICS_NX_COMPAT,
		NumberOfRvaAndSizes:         16,
	}
	header.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_EXPORT] = pe.DataDirectory{
		VirtualAddress: sectionAddress, Size: uint32(len(exports))}
	write(header)
	write(pe.SectionHeader32{
		Name:        [8]uint8{'.', 'r', 'd', 'a', 't', 'a'},
		VirtualSize: uint32(len(exports)), VirtualAddress: sectionAddress,
		SizeOfRawData: uint32(padded), PointerToRawData: sectionOffset,
		Characteristics: pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
	})
	image.Write(make([]byte, sectionOffset-image.Len()))
	image.Write(exports)
	image.Write(make([]byte, padded-len(exports)))
	return image.Bytes()
}

// exportSection returns the section: the export directory, its three tables of one entry each, and
// the texts. A function whose address is inside of the export directory's range is a forwarder, and
// a text is there instead of code.
func exportSection(dll, name, target string) []byte {
	size := binary.Size(exportDirectory{})
	functions := sectionAddress + size
	names := functions + 4
	ordinals := names + 4
	dllText := ordinals + 2
	nameText := dllText + len(dll) + 1
	targetText := nameText + len(name) + 1
	var section bytes.Buffer
	for _, part := range []any{
		exportDirectory{
			Name: uint32(dllText), Base: 1, NumberOfFunctions: 1, NumberOfNames: 1,
			AddressOfFunctions: uint32(functions), AddressOfNames: uint32(names),
			AddressOfNameOrdinals: uint32(ordinals),
		},
		uint32(targetText), uint32(nameText), uint16(0),
		[]byte(dll + "\x00" + name + "\x00" + target + "\x00"),
	} {
		if err := binary.Write(&section, binary.LittleEndian, part); err != nil {
			panic(fmt.Sprintf("write a %T: %v", part, err))
		}
	}
	return section.Bytes()
}

// align returns n, or the next multiple of unit.
func align(n, unit int) int { return (n + unit - 1) / unit * unit }
