package win

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/causeway-csi/causeway/internal/winetest"
	"github.com/causeway-csi/causeway/pkg/mounter"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/links/linkstest"
	"github.com/causeway-csi/causeway/pkg/mounter/internal/mountercontract"
)

// These tests are the program of make windows-check. They try the statements about Windows on which
// the Host of Windows rests, and which nothing without Windows can prove. Each prints the assumed
// and the found result. docs/contributing/windows.md has the rest of a first run.

// checkProgram is the name of the program, which runs these tests only.
const checkProgram = "windows-check.exe"

func TestMain(m *testing.M) {
	if strings.EqualFold(filepath.Base(os.Args[0]), checkProgram) && len(os.Args) == 1 {
		os.Args = append(os.Args, "-test.v", "-test.run=^TestWindows$")
	}
	os.Exit(m.Run())
}

// assumption is a statement about Windows.
type assumption struct {
	area, text string // text: the statement
	// try returns asAssumed, or the different finding. It skips the test where something is
	// missing.
	try func(t *testing.T) string
}

// asAssumed is the result of a check that confirms its assumption.
const asAssumed = "the same"

func TestWindows(t *testing.T) {
	if winetest.Wine {
		t.Skip("Wine is not Windows")
	}
	t.Run("links", func(t *testing.T) { linkstest.LinkHost(t, windowsLinks{}, mountercontract.OSFiles{}, t.TempDir()) })
	tryAll(t, linkAssumptions)
	if host := newDiskHost(); host != nil {
		t.Run("disks", func(t *testing.T) { linkstest.DiskHost(t, host, mountercontract.OSFiles{}, t.TempDir()) })
		tryAll(t, diskAssumptions)
	}
	t.Run("shares", testChecksOfShares)
}

// tryAll tries assumptions, and prints the findings.
func tryAll(t *testing.T, all []assumption) {
	for _, a := range all {
		t.Run(a.area+": "+a.text, func(t *testing.T) {
			found := a.try(t)
			t.Logf("assumed: %s; found: %s", a.text, found)
			if found != asAssumed {
				t.Errorf("the assumption is wrong")
			}
		})
	}
}

// linkAssumptions are those about links, directories and sockets.
var linkAssumptions = []assumption{
	{"links", "a link to a share that is away is a link of directories with its text", func(t *testing.T) string {
		path, text := filepath.Join(t.TempDir(), "link"), `\\causeway.invalid\share\sub\`
		if err := (windowsLinks{}).Link(text, path); err != nil {
			return err.Error()
		}
		switch e, err := (windowsLinks{}).Entry(path); {
		case err != nil:
			return err.Error()
		case e != links.LinkEntry{Kind: links.DirLink, Text: text}:
			return fmt.Sprintf("%s with the text %q", e.Kind, e.Text)
		}
		return asAssumed
	}},
	{"links", "os.Symlink to a share that is away makes a link of files", func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(`\\causeway.invalid\share`, path); err != nil {
			return err.Error()
		}
		if e, err := (windowsLinks{}).Entry(path); err != nil || e.Kind != links.OtherLink {
			return fmt.Sprintf("%s, %v", e.Kind, err)
		}
		return asAssumed
	}},
	{"links", "data flows through a link whose text is the name of a volume", func(t *testing.T) string {
		dir := t.TempDir()
		volume, rest, err := volumeName(dir)
		if err != nil {
			t.Skip(err)
		}
		path := filepath.Join(t.TempDir(), "link")
		if err := (windowsLinks{}).Link(volume+rest, path); err != nil {
			return err.Error()
		}
		if err := os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600); err != nil {
			return err.Error()
		}
		if !mountercontract.Exists(filepath.Join(dir, "file")) {
			return "the file is elsewhere"
		}
		return asAssumed
	}},
	{"links", "a directory that a process has opened without sharing cannot be removed: in use",
		func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "dir")
			mountercontract.MakeDir(t, path)
			name, err := windows.UTF16PtrFromString(path)
			if err != nil {
				t.Fatal(err)
			}
			h, err := windows.CreateFile(name, windows.GENERIC_READ, 0, nil, windows.OPEN_EXISTING,
				windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
			if err != nil {
				return err.Error()
			}
			defer windows.CloseHandle(h)
			if err := (windowsLinks{}).Rmdir(path); !errors.Is(err, mounter.ErrBusy) {
				return fmt.Sprint("rmdir = ", err)
			}
			return asAssumed
		}},
	{"links", "the usage of a directory is the same through a link", func(t *testing.T) string {
		dir := t.TempDir()
		path := filepath.Join(t.TempDir(), "link")
		if err := (windowsLinks{}).Link(dir, path); err != nil {
			return err.Error()
		}
		direct, err := (windowsLinks{}).Usage(dir)
		through, err2 := (windowsLinks{}).Usage(path)
		if err := errors.Join(err, err2); err != nil || direct.TotalBytes != through.TotalBytes {
			return fmt.Sprintf("%d and %d bytes, %v", direct.TotalBytes, through.TotalBytes, err)
		}
		return asAssumed
	}},
	{"sockets", "a socket in the filesystem accepts a connection, and its file is a socket", func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "csi.sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			return err.Error()
		}
		defer l.Close()
		c, err := net.Dial("unix", path)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSocket == 0 {
			return fmt.Sprintf("the file: %v, %v", info, err)
		}
		return asAssumed
	}},
}

// volumeName returns the name of the volume of a path, \\?\Volume{…}\, and the rest of the path.
func volumeName(path string) (volume, rest string, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return "", "", err
	}
	root, id := make([]uint16, windows.MAX_PATH), make([]uint16, windows.MAX_PATH)
	if err := windows.GetVolumePathName(name, &root[0], uint32(len(root))); err != nil {
		return "", "", fmt.Errorf("the volume of %s: %w", path, err)
	}
	if err := windows.GetVolumeNameForVolumeMountPoint(&root[0], &id[0], uint32(len(id))); err != nil {
		return "", "", fmt.Errorf("the name of the volume of %s: %w", path, err)
	}
	rest, err = filepath.Rel(windows.UTF16ToString(root), path)
	return windows.UTF16ToString(id), rest, err
}
