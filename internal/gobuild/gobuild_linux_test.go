package gobuild

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// module makes a module with a program that prints a text. The program is in no cache, as the time
// is a part of it.
func module(t *testing.T) (write func(text string), p Program) {
	t.Helper()
	dir, comment := t.TempDir(), fmt.Sprint("// ", time.Now().UnixNano())
	put := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module example.com/program\n\ngo 1.26\n")
	write = func(text string) {
		put("main.go", fmt.Sprintf("package main\n\n%s\nfunc main() { println(%q) }\n", comment, text))
	}
	return write, Program{Package: ".", Dir: dir}
}

// prints returns the text that a copy of the program prints.
func prints(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(path).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// Callers at the same time and later callers share one link, and all get the program.
func TestOneLink(t *testing.T) {
	write, p := module(t)
	write("first")
	dir := t.TempDir()
	tools := filepath.Join(dir, "tools")
	tool := filepath.Join(dir, "tool")
	script := "#!/bin/sh\necho \"$@\" >>" + tools + "\nexec \"$@\"\n"
	if err := os.WriteFile(tool, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p.Flags = []string{"-toolexec=" + tool}
	var callers errgroup.Group
	for i := range 4 {
		callers.Go(func() error { return p.Copy(t.Context(), filepath.Join(dir, fmt.Sprint("program-", i))) })
	}
	if err := callers.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := p.Copy(t.Context(), filepath.Join(dir, "program-4")); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if got := prints(t, filepath.Join(dir, fmt.Sprint("program-", i))); got != "first" {
			t.Errorf("copy %d prints %q", i, got)
		}
	}
	log, err := os.ReadFile(tools)
	if err != nil {
		t.Fatal(err)
	}
	if links := strings.Count(string(log), "/link -o "); links != 1 {
		t.Errorf("%d links, want 1", links)
	}
}

// A copy has the sources of its time, and earlier copies stay as they are.
func TestChangedSources(t *testing.T) {
	write, p := module(t)
	dir := t.TempDir()
	for _, text := range []string{"first", "second"} {
		write(text)
		if err := p.Copy(t.Context(), filepath.Join(dir, text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"first", "second"} {
		if got := prints(t, filepath.Join(dir, text)); got != text {
			t.Errorf("the program prints %q, want %q", got, text)
		}
	}
}

// The error of a program that does not compile has the compiler's message.
func TestBrokenSources(t *testing.T) {
	write, p := module(t)
	write("text")
	p.Package = "./missing"
	if err := p.Copy(t.Context(), filepath.Join(t.TempDir(), "program")); err == nil ||
		!strings.Contains(err.Error(), "missing") {
		t.Errorf("the error is %v", err)
	}
}
