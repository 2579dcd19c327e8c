// Package testimages makes the images that test clusters have from the start, as there is no
// registry to pull them from.
package testimages

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// The images, by the names that Kubernetes' own tests know them by.
const (
	Pause   = "registry.k8s.io/pause:3.10.2" // of a pod's sandbox
	Busybox = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
	DNS     = "registry.k8s.io/coredns/coredns:v1.15.0"
)

// Build writes archives of all of them into dir. bin has the components.
func Build(dir, bin string) error {
	pause, err := program(bin, "pause")
	if err != nil {
		return err
	}
	dns, err := program(bin, "dns")
	if err != nil {
		return err
	}
	busybox, err := busyboxFiles()
	if err != nil {
		return fmt.Errorf("busybox: %w", err)
	}
	_, err = write(dir, map[string]oci.Image{
		Pause:   {Layers: [][]oci.File{{pause}}, Entrypoint: []string{"/pause"}, User: "65535:65535"},
		DNS:     {Layers: [][]oci.File{{dns}}, Entrypoint: []string{"/dns"}, User: "65532:65532"},
		Busybox: {Layers: [][]oci.File{busybox}, Cmd: []string{"sh"}, Env: path},
	})
	return err
}

// path is where busybox' links are.
var path = []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}

// program returns a program of bin, as the root of an image has it.
func program(bin, name string) (oci.File, error) {
	content, err := os.ReadFile(filepath.Join(bin, name))
	return oci.File{Path: "/" + name, Mode: 0o755, Content: content}, err
}

// write writes an archive of each image into dir, and returns their paths.
func write(dir string, images map[string]oci.Image) ([]string, error) {
	var tars []string
	for ref, i := range images {
		i.Platform = "linux/" + runtime.GOARCH
		name, _, _ := strings.Cut(ref[strings.LastIndexByte(ref, '/')+1:], ":")
		tar := filepath.Join(dir, name+".tar")
		if _, err := oci.Write(tar, ref, i); err != nil {
			return nil, err
		}
		tars = append(tars, tar)
	}
	return tars, nil
}

// busyboxFiles returns a root with this machine's busybox, and a link to it for each of its
// applets.
func busyboxFiles() ([]oci.File, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: busybox-static)", err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if libraries, err := needed(content); err != nil || len(libraries) > 0 {
		return nil, errors.Join(err, fmt.Errorf("%s is not linked statically (it needs %s): Debian's busybox-static is",
			path, strings.Join(libraries, ", ")))
	}
	applets, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", path, err)
	}
	files := []oci.File{
		{Path: "/bin/busybox", Mode: 0o755, Content: content},
		{Path: "/etc/passwd", Mode: 0o644,
			Content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")},
		{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnogroup:x:65534:\n")},
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			files = append(files, oci.File{Path: "/bin/" + applet, Mode: fs.ModeSymlink | 0o777, Target: "busybox"})
		}
	}
	for _, dir := range []string{"/dev", "/home", "/mnt", "/opt", "/proc", "/root", "/sys", "/usr/bin", "/sbin",
		"/var/run"} {
		files = append(files, oci.File{Path: dir, Mode: fs.ModeDir | 0o755})
	}
	return append(files, oci.File{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}), nil
}

// needed returns the shared libraries that a program needs.
func needed(program []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, err
	}
	return f.ImportedLibraries()
}
