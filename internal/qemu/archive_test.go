package qemu

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/internal/namespace"
)

func TestAnArchiveFollowsItsFormat(t *testing.T) {
	var out bytes.Buffer
	a := NewArchive(&out)
	a.File("/bin/a", []byte("hello"))
	a.File("bin/sub/../b", nil)
	a.Dir("/dev")
	if err := a.End(); err != nil {
		t.Fatal(err)
	}
	header := func(inode, mode, size, name string) string {
		const zero = "00000000"
		return "070701" + inode + mode + zero + zero + "00000001" + zero + size + zero + zero + zero + zero + name + zero
	}
	want := header("00000001", "000041ED", "00000000", "00000004") + "bin\x00\x00\x00" +
		header("00000002", "000081ED", "00000005", "00000006") + "bin/a\x00hello\x00\x00\x00" +
		header("00000003", "000081ED", "00000000", "00000006") + "bin/b\x00" +
		header("00000004", "000041ED", "00000000", "00000004") + "dev\x00\x00\x00" +
		header("00000005", "00000000", "00000000", "0000000B") + "TRAILER!!!\x00\x00\x00\x00"
	if got := out.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCpioReadsAnArchive(t *testing.T) {
	namespace.Need(t, "cpio")
	var out bytes.Buffer
	a := NewArchive(&out)
	a.File("deep/down/file", []byte("hello"))
	if err := a.End(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("cpio", "-i")
	cmd.Dir, cmd.Stdin = dir, &out
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "deep", "down", "file")); string(got) != "hello" {
		t.Errorf("the file has %q, %v", got, err)
	}
}
