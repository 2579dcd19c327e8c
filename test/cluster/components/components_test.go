package components

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/flock"
)

// module makes a module with a program in a directory of tools, and a builder that knows it.
func module(t *testing.T, program string) builder {
	t.Helper()
	b := builder{
		table: map[string]component{"hello": {"greet", "example.com/greet", nil}},
		tools: t.TempDir(), cache: t.TempDir(), log: io.Discard,
	}
	write(t, filepath.Join(b.tools, "greet", "go.mod"), "module example.com/greet\n\ngo 1.26.0\n")
	write(t, filepath.Join(b.tools, "greet", "main.go"), program)
	return b
}

const greeting = "package main\n\nfunc main() { print(\"hello\") }\n"

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBuildsOnce(t *testing.T) {
	b := module(t, greeting)
	var log bytes.Buffer
	b.log = &log
	dir, err := b.build(t.Context(), []string{"hello"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(dir, "hello")).CombinedOutput(); err != nil || string(out) != "hello" {
		t.Errorf("it said %q, %v", out, err)
	}
	log.Reset()
	again, err := b.build(t.Context(), []string{"hello"})
	if err != nil || again != dir || log.Len() != 0 {
		t.Errorf("again: got %s, %v, and the log %q, want %s and none", again, err, log.String(), dir)
	}
}

func TestFlagsForOtherBuildsDontMatter(t *testing.T) {
	b := module(t, greeting)
	before, err := b.directory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOFLAGS", "-race -mod=vendor")
	if dir, err := b.build(t.Context(), []string{"hello"}); err != nil || dir != before {
		t.Errorf("got %s, %v, want %s", dir, err, before)
	}
}

func TestBuildsAtTheSameTimeAreOne(t *testing.T) {
	b := module(t, greeting)
	log := &sharedLog{}
	b.log = log
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := b.build(t.Context(), []string{"hello"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := strings.Count(log.String(), "components: built hello"); got != 1 {
		t.Errorf("built %d times, want once:\n%s", got, log)
	}
}

// sharedLog is a log that several goroutines may write.
type sharedLog struct {
	mu  sync.Mutex
	log bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}

func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.String()
}

func TestAFailedBuildLeavesNothing(t *testing.T) {
	b := module(t, "package main\n\nfunc main() { undefined() }\n")
	var log bytes.Buffer
	b.log = &log
	dir, err := b.build(t.Context(), []string{"hello"})
	if err == nil || !strings.Contains(log.String(), "undefined: undefined") {
		t.Errorf("got %v, and the log %q, want what the compiler says", err, log.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("got %v, %v, want nothing", left, err)
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	b := module(t, greeting)
	unlock, err := flock.Wait(t.Context(), filepath.Join(b.cache, "lock"), func() { t.Error("nobody has the lock") })
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	var log bytes.Buffer
	b.log = &log
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := b.build(ctx, []string{"hello"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	if got := strings.Count(log.String(), "waiting"); got != 1 {
		t.Errorf("it told %d times that it waits, want once", got)
	}
}

func TestTheDirectoryHasTheNameOfTheBuild(t *testing.T) {
	b := module(t, greeting)
	seen := map[string]string{}
	note := func(what string) {
		t.Helper()
		dir, err := b.directory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[dir]; ok {
			t.Errorf("%s: the same directory as for %s", what, other)
		}
		seen[dir] = what
	}
	note("a module")
	write(t, filepath.Join(b.tools, "greet", "go.sum"), "\n")
	note("other sums")
	write(t, filepath.Join(b.tools, "greet", "go.mod"), "module example.com/greet\n\ngo 1.26.1\n")
	note("another go.mod")
	t.Setenv("GOEXPERIMENT", "nogreenteagc")
	note("another compiler")
}

func TestOldDirectoriesGo(t *testing.T) {
	b := module(t, greeting)
	for name, age := range map[string]time.Duration{"old": unused + time.Hour, "recent": unused - time.Hour} {
		write(t, filepath.Join(b.cache, name, "hello"), "")
		then := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(b.cache, name), then, then); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.build(t.Context(), []string{"hello"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"old": false, "recent": true} {
		if _, err := os.Stat(filepath.Join(b.cache, name)); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
}

func TestUnknownComponent(t *testing.T) {
	if _, err := Build(t.Context(), io.Discard, "etcd", "kube-nothing"); err == nil ||
		!strings.Contains(err.Error(), "kube-apiserver") {
		t.Errorf("got %v, want an error that has the components' names", err)
	}
}

// Without its tool directive, go mod tidy would remove the modules of a component.
func TestEveryComponentIsATool(t *testing.T) {
	dir, err := tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range table {
		if c.pkg == "." { // a program of ours, which the module is there for
			if _, err := os.Stat(filepath.Join(dir, c.module, "main.go")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, c.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^(tool |\t)` + regexp.QuoteMeta(c.pkg) + `$`).Match(data) {
			t.Errorf("%s: %s/go.mod has no tool directive for %s", name, c.module, c.pkg)
		}
	}
}

// A program of ours is built anew when it changes, as its sources are not in a go.sum.
func TestSourcesAreAPartOfTheKey(t *testing.T) {
	b := module(t, greeting)
	before, err := b.directory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(b.tools, "greet", "more.go"), "package main\n")
	if after, err := b.directory(t.Context()); err != nil || after == before {
		t.Errorf("got %s, %v, as before", after, err)
	}
}

func TestKubeVersion(t *testing.T) {
	dir, err := tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := kubeVersion(t.Context(), filepath.Join(dir, "kube"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-X k8s.io/client-go/pkg/version.gitMajor=1 ",
		"-X k8s.io/component-base/version.gitVersion=v1."} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}
