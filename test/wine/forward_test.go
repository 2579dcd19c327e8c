package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"testing"
)

// TestForwarder reads the DLL as a loader does.
func TestForwarder(t *testing.T) {
	file, err := pe.NewFile(bytes.NewReader(forwarder("x.dll", "ProcessPrng", "advapi32.SystemFunction036")))
	if err != nil {
		t.Fatal(err)
	}
	header, ok := file.OptionalHeader.(*pe.OptionalHeader64)
	if !ok || file.Machine != pe.IMAGE_FILE_MACHINE_AMD64 || file.Characteristics&pe.IMAGE_FILE_DLL == 0 ||
		len(file.Sections) != 1 {
		t.Fatalf("got %+v with %d sections, want a DLL for amd64 with one", file.FileHeader, len(file.Sections))
	}
	s := file.Sections[0]
	if s.VirtualAddress%header.SectionAlignment != 0 || s.Offset%header.FileAlignment != 0 ||
		s.Size%header.FileAlignment != 0 || s.Offset < header.SizeOfHeaders ||
		header.SizeOfImage < s.VirtualAddress+s.VirtualSize || header.SizeOfImage%header.SectionAlignment != 0 {
		t.Errorf("the section %+v does not fit in the image %+v", s.SectionHeader, header)
	}
	data, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	at := func(address uint32) []byte { return data[address-s.VirtualAddress:] }
	text := func(address uint32) string {
		before, _, _ := bytes.Cut(at(address), []byte{0})
		return string(before)
	}
	number := func(address uint32) uint32 { return binary.LittleEndian.Uint32(at(address)) }

	exports := header.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_EXPORT]
	var dir exportDirectory
	if err := binary.Read(bytes.NewReader(at(exports.VirtualAddress)), binary.LittleEndian, &dir); err != nil {
		t.Fatal(err)
	}
	if dir.NumberOfFunctions != 1 || dir.NumberOfNames != 1 {
		t.Fatalf("got %+v, want one function with a name", dir)
	}
	index := binary.LittleEndian.Uint16(at(dir.AddressOfNameOrdinals))
	function := number(dir.AddressOfFunctions + 4*uint32(index))
	if text(dir.Name) != "x.dll" || text(number(dir.AddressOfNames)) != "ProcessPrng" || index != 0 {
		t.Errorf("got %q with %q, function %d", text(dir.Name), text(number(dir.AddressOfNames)), index)
	}
	if function < exports.VirtualAddress || function >= exports.VirtualAddress+exports.Size {
		t.Errorf("the function is at %#x, outside of the exports %+v: it is code", function, exports)
	}
	if got := text(function); got != "advapi32.SystemFunction036" {
		t.Errorf("forwarded to %q", got)
	}
}
