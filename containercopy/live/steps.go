package main

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/chart"
)

// entry is the header of a file in a tar archive.
func entry(name string, size int64) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		panic(err) // the name is ASCII
	}
	return b.Bytes()
}

// pods starts the pods of the steps.
func (p play) pods() error {
	say("Pods: without a shell, with volumes of the driver; and of the user 1000")
	if err := p.kubectl.Apply(p.ctx, objects); err != nil {
		return err
	}
	return p.show("wait", "--for=condition=Ready", "pod/bare", "pod/user", "--timeout=120s")
}

// path returns the path of a local file.
func (p play) path(name string) string { return filepath.Join(p.dir, name) }

// random makes a local file with random content.
func (p play) random(name string, size int) error {
	content := make([]byte, size)
	rand.Read(content)
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p.path(name), content, 0o644)
}

// sums returns the names and the SHA-256 of all files of a local directory, or of a file.
func (p play) sums(name string) (string, error) {
	var all strings.Builder
	root := p.path(name)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%s %x\n", strings.TrimPrefix(path, root), sha256.Sum256(content))
		return err
	})
	return all.String(), err
}

// same returns an error if two local trees differ.
func (p play) same(a, b string) error {
	first, err := p.sums(a)
	if err != nil {
		return err
	}
	second, err := p.sums(b)
	if err != nil {
		return err
	}
	if first != second || first == "" {
		return fmt.Errorf("%s and %s differ:\n%.2000s\n%.2000s", a, b, first, second)
	}
	return nil
}

// files copies files and directories to each kind of volume and back.
func (p play) files() error {
	say("Files and directories, to each kind of volume and back")
	for i := range 50 {
		if err := p.random(fmt.Sprintf("tree/d%d/f%d", i%5, i), 1000*i); err != nil {
			return err
		}
	}
	if err := p.random("large", 100<<20); err != nil {
		return err
	}
	for _, at := range []string{"bare:/scratch", "bare:/directory", "bare:/image", "user:/scratch"} {
		back := "back-" + strings.NewReplacer(":/", "-").Replace(at)
		for _, args := range [][]string{
			{"--checksum=sha256", p.path("large"), at}, {p.path("tree"), at + "/"},
			{"--checksum=sha256", at + "/large", p.path(back + "-large")}, {at + "/tree", p.path(back + "-tree")},
		} {
			if err := p.copy(0, "", args...); err != nil {
				return err
			}
		}
		if err := p.same("large", back+"-large"); err != nil {
			return err
		}
		if err := p.same("tree", back+"-tree"); err != nil {
			return err
		}
	}
	return p.refusals()
}

// refusals are the paths at which no copy is possible.
func (p play) refusals() error {
	for _, tc := range []struct {
		code  int
		words string
		args  []string
	}{
		{1, "ermission denied", []string{p.path("tree"), "user:/"}},
		{1, "filesystem of the kernel", []string{p.path("tree"), "bare:/proc/sys/"}},
		{1, "read-only", []string{p.path("tree"), "bare:/locked/"}},
		{1, "mount point", []string{"--overwrite=files", p.path("large"), "bare:/etc/hostname"}},
		{1, "exist", []string{p.path("large"), "bare:/scratch/large"}},
		{1, "", []string{"bare:/none", p.path("none")}},
		{1, "not found", []string{"none:/x", p.path("none")}},
		{2, "", []string{"bare:relative", p.path("none")}},
		{1, "is not valid", []string{"-c", "none", "user:/scratch/large", p.path("none")}},
	} {
		if err := p.copy(tc.code, tc.words, tc.args...); err != nil {
			return err
		}
	}
	return p.copy(0, "", "--overwrite=files", p.path("large"), "bare:/scratch/large")
}

// streams copies by standard input and output.
func (p play) streams() error {
	say("Standard input and output")
	cmd := p.command("bare:/directory/tree", "-")
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names[h.Name] = true
	}
	if !names["tree/d1/f1"] {
		return fmt.Errorf("the stream has %v", names)
	}
	cmd = p.command("--checksum=sha256", "-", "user:/scratch/streamed")
	cmd.Stdin = bytes.NewReader(out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	if err := p.copy(0, "", "user:/scratch/streamed", p.path("streamed")); err != nil {
		return err
	}
	return p.same("tree", "streamed")
}

// users copies with the rights of several users.
func (p play) users() error {
	say("Users: from only, to only, exec only, both without exec")
	for _, tc := range []struct {
		user     string
		from, to string // words of the error; empty: allowed
	}{
		{"reader", "", "podcopiesto"}, {"writer", "podcopiesfrom", ""}, {"execer", "podcopiesfrom", "podcopiesto"},
		{"copier", "pods/exec", "pods/exec"}, {"stranger", "podcopiesfrom", "podcopiesto"},
	} {
		code := map[bool]int{true: 1} // after an error
		if err := p.copy(code[tc.from != ""], tc.from, "--as="+tc.user, "bare:/scratch/tree",
			p.path("as-"+tc.user)); err != nil {
			return err
		}
		if err := p.copy(code[tc.to != ""], tc.to, "--as="+tc.user, p.path("tree"),
			"bare:/scratch/as-"+tc.user); err != nil {
			return err
		}
	}
	return nil
}

// labels denies copies of a pod, and of a namespace.
func (p play) labels() error {
	say("The label that denies copies")
	for _, object := range []string{"pod/bare", "namespace/default"} {
		if err := p.show("label", object, "copy.causeway.dev/deny=true"); err != nil {
			return err
		}
		if err := p.copy(1, "copy.causeway.dev/deny", "bare:/scratch/tree", p.path("denied")); err != nil {
			return err
		}
		if err := p.show("label", object, "copy.causeway.dev/deny-"); err != nil {
			return err
		}
	}
	return p.copy(0, "", "bare:/scratch/tree", p.path("allowed"))
}

// limits begins more copies of a pod than are permitted.
func (p play) limits() error {
	say("The third copy of a pod at a time")
	first, err := p.holdCopy("-", "bare:/scratch/one")
	if err != nil {
		return err
	}
	second, err := p.holdCopy("-", "bare:/scratch/two")
	if err != nil {
		return err
	}
	if err := p.copy(75, "try again later", "bare:/scratch/tree", p.path("third")); err != nil {
		return err
	}
	if err := p.copy(0, "", "user:/scratch/tree", p.path("other")); err != nil {
		return err
	}
	if err := first.end(0, ""); err != nil {
		return err
	}
	if err := second.end(0, ""); err != nil {
		return err
	}
	return p.copy(0, "", "bare:/scratch/tree", p.path("later"))
}

// clean returns an error unless a directory of a container has no unfinished copy, and not that
// copy.
func (p play) clean(at, name string) error {
	cmd := p.command(at, "-")
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the stream of %s: %w", at, err)
		}
		if strings.Contains(h.Name, ".kcopy") || strings.Contains(h.Name, name) {
			return fmt.Errorf("%s has %q", at, h.Name)
		}
	}
}

// kills ends each process of a copy by SIGKILL. The copy fails, and nothing is at its destination.
// A worker has no time to remove its unfinished copy.
func (p play) kills() error {
	nodes, err := p.cluster.Nodes()
	if err != nil {
		return err
	}
	kill := func(program string) error {
		var errs []error
		for _, n := range nodes {
			if _, err := n.Run(p.ctx, "pkill", "-KILL", "-x", program); err != nil {
				errs = append(errs, err) // it is on another node
			}
		}
		if len(errs) == len(nodes) {
			return errors.Join(errs...)
		}
		return nil
	}
	for i, victim := range []string{"worker", "agent", "apiserver", "kubectl copy"} {
		say("SIGKILL for the %s: the copy in progress fails", victim)
		at := fmt.Sprintf("bare:/scratch/kills-%d", i)
		h, err := p.holdCopy("-", at)
		if err != nil {
			return err
		}
		if victim == "kubectl copy" {
			err = h.kill()
		} else if err = kill(victim); err == nil {
			err = h.await(1, "")
		}
		if err != nil {
			return err
		}
		if err := until(func() error { return p.copy(1, "no such file", at, p.path("none")) }); err != nil {
			return err
		}
	}
	return until(func() error { return p.copy(0, "", p.path("tree"), "bare:/scratch/after-kills") })
}

// deletion deletes a pod and its volumes while a copy is in progress.
func (p play) deletion() error {
	say("A pod is deleted during a copy to its image: the image is unstaged and deleted")
	volume, err := p.kubectl.Run(p.ctx, "get", "pvc", "image", "-o", "jsonpath={.spec.volumeName}")
	if err != nil {
		return err
	}
	h, err := p.holdCopy("-", "bare:/image/lost")
	if err != nil {
		return err
	}
	mounts, err := p.mounts(volume)
	if err != nil {
		return err
	}
	if len(mounts) == 0 { // the look after the deletion would say nothing
		return fmt.Errorf("volume %s has no mount before the deletion of its pod", volume)
	}
	if err := p.show("delete", "pod/bare", "--timeout=30s"); err != nil {
		return err
	}
	if err := h.await(1, ""); err != nil {
		return err
	}
	if err := p.unstaged(volume); err != nil {
		return err
	}
	if err := p.show("delete", "pvc/image", "--timeout=30s"); err != nil {
		return err
	}
	return p.show("wait", "--for=delete", "pv/"+volume, "--timeout=30s")
}

// unstaged waits for 10 s until a volume is mounted on no node: NodeUnstageVolume has succeeded,
// and no descriptor of a worker or an agent keeps its filesystem in use.
func (p play) unstaged(volume string) error {
	var left []string
	for range 20 {
		var err error
		if left, err = p.mounts(volume); err != nil {
			return err
		}
		if len(left) == 0 {
			fmt.Println("volume", volume, "is mounted on no node")
			return nil
		}
		time.Sleep(500 * time.Millisecond)
	}
	return fmt.Errorf("volume %s is still mounted: %q", volume, left)
}

// mounts returns the mounts of a volume on all nodes.
func (p play) mounts(volume string) (all []string, err error) {
	nodes, err := p.cluster.Nodes()
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		out, err := n.Run(p.ctx, "cat", "/proc/mounts")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, volume) {
				all = append(all, n.Name+": "+strings.TrimSpace(line))
			}
		}
	}
	return all, nil
}

// off removes container copy with a copy in progress, and installs it again.
func (p play) off() error {
	say("Container copy is removed with a copy in progress, and installed again")
	h, err := p.holdCopy("-", "user:/scratch/removed")
	if err != nil {
		return err
	}
	if _, err := chart.HelmIn(p.ctx, p.helm, p.kubectl.Environment(), "uninstall", "copy", "--namespace="+namespace,
		"--wait", "--timeout=120s"); err != nil {
		return err
	}
	if err := h.await(1, ""); err != nil {
		return err
	}
	if err := p.copy(1, "container copy", "user:/scratch/tree", p.path("none")); err != nil {
		return err
	}
	if err := p.install(); err != nil {
		return err
	}
	if err := until(func() error { return p.copy(0, "", "user:/scratch/tree", p.path("again")) }); err != nil {
		return err
	}
	return p.clean("user:/scratch", "removed")
}
