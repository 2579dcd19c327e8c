package testimages

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/causeway-csi/causeway/deploy/images/oci"
)

// The images that Kubernetes' storage suite needs beside Busybox, by the names that it has them by.
const (
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	Nginx   = "registry.k8s.io/e2e-test-images/nginx:1.27.0-2"
	Glibc   = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.1.1"
)

// BuildSuite writes archives of the images that Kubernetes' storage suite needs into dir, and
// returns their paths. agnhost is the program of that name. Of nginx the suite uses the shell, of
// the image with glibc a dd that supports oflag=nocache.
func BuildSuite(dir, agnhost string) ([]string, error) {
	own, err := program(filepath.Dir(agnhost), filepath.Base(agnhost))
	if err != nil {
		return nil, err
	}
	busybox, err := busyboxFiles()
	if err != nil {
		return nil, fmt.Errorf("busybox: %w", err)
	}
	gnu, err := dynamic("/bin/dd", "/bin/dash")
	if err != nil {
		return nil, err
	}
	gnu = append(gnu, oci.File{Path: "/bin/sh", Mode: fs.ModeSymlink | 0o777, Target: "dash"})
	return write(dir, map[string]oci.Image{
		// The suite runs the node's programs from its pods, with the pods' PATH, so the image has
		// the paths of a Linux distribution.
		Agnhost: {Layers: [][]oci.File{busybox, {own}}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			}},
		Nginx: {Layers: [][]oci.File{busybox}, Cmd: []string{"sh"}, Env: path},
		Glibc: {Layers: [][]oci.File{busybox, gnu}, Cmd: []string{"sh"}, Env: path},
	})
}

// dynamic returns programs of this machine's with the shared libraries that they need, at the same
// paths.
func dynamic(programs ...string) ([]oci.File, error) {
	var files []oci.File
	have := map[string]bool{}
	add := func(path string) error {
		if have[path] {
			return nil
		}
		have[path] = true
		content, err := os.ReadFile(path)
		files = append(files, oci.File{Path: path, Mode: 0o755, Content: content})
		return err
	}
	for _, p := range programs {
		if err := add(p); err != nil {
			return nil, err
		}
		// The linker's list: a name, and for most where it was found.
		out, err := exec.Command("ldd", p).Output()
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w", p, err)
		}
		for _, word := range strings.Fields(string(out)) {
			if !filepath.IsAbs(word) {
				continue
			}
			if err := add(word); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}
