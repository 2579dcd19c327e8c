package main

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// stage is a part of a Dockerfile: its instructions, each on a single line.
type stage struct {
	from  string
	lines []string
}

// argument returns the rest of the instruction with this beginning.
func (s stage) argument(begin string) string {
	for _, l := range s.lines {
		if rest, ok := strings.CutPrefix(l, begin); ok {
			return rest
		}
	}
	return ""
}

var from = regexp.MustCompile(`^FROM (?:--platform=\S+ )?(\S+) AS (\S+)$`)

// stages reads a Dockerfile.
func stages(t *testing.T, goos string) map[string]stage {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", goos, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	all, now := map[string]stage{}, ""
	for line := range strings.SplitSeq(strings.ReplaceAll(string(content), "\\\n", " "), "\n") {
		line = strings.Join(strings.Fields(line), " ")
		if m := from.FindStringSubmatch(line); m != nil {
			now = m[2]
			all[now] = stage{from: m[1]}
		} else if line != "" && line[0] != '#' {
			all[now] = stage{all[now].from, append(all[now].lines, line)}
		}
	}
	return all
}

var label = regexp.MustCompile(`(\S+)="([^"]*)"`)

// TestDockerfilesMakeTheSameImages compares the Dockerfiles with the images of make images.
// Dockerfiles cannot be run without Docker.
func TestDockerfilesMakeTheSameImages(t *testing.T) {
	pinned, err := os.ReadFile(filepath.Join("..", "..", "hack", "go"))
	if err != nil {
		t.Fatal(err)
	}
	golang := "golang:" + regexp.MustCompile(`(?m)^version=go(\S+)$`).FindStringSubmatch(string(pinned))[1] + "-bookworm"
	for goos, base := range map[string]string{"linux": "gcr.io/distroless/static-debian12", "windows": windowsBase} {
		all := stages(t, goos)
		builds := slices.DeleteFunc(slices.Clone(all["build"].lines),
			func(l string) bool { return !strings.HasPrefix(l, "RUN CGO_ENABLED=0 ") })
		if len(builds) != 2 {
			t.Errorf("%s: %d modules are built, want 2", goos, len(builds))
		}
		for _, want := range []string{" -trimpath ", " -buildvcs=false ", " -tags " + tags + " ",
			`"` + ldflags + " -X main.version=$VERSION -X " + module + `/sidecars/internal/sidecar.version=$VERSION"`} {
			if i := slices.IndexFunc(builds, func(b string) bool { return !strings.Contains(b, want) }); i >= 0 {
				t.Errorf("%s: a build has no %s: %s", goos, want, builds[i])
			}
		}
		if goos == "linux" {
			var names []string
			for _, p := range products {
				names = append(names, p.name)
			}
			want := strings.Join(names, " ") + "; do mkdir -p /images/$p/usr/bin; mv /out/$p /images/$p/usr/bin/; ln " +
				"-s usr/bin/$p /images/$p/$p; done"
			if got := all["build"].argument("RUN set -eu; for p in "); got != want {
				t.Errorf("the programs are put into place by %q, want %q", got, want)
			}
		}
		if all["build"].from != golang {
			t.Errorf("%s: it builds with %s, and hack/go with %s", goos, all["build"].from, golang)
		}
		for _, p := range products {
			got, ok := all[p.name]
			if goos == "windows" && !p.windows {
				continue
			}
			if !ok || got.from != base {
				t.Errorf("%s: %s is put on %q, want %q", goos, p.name, got.from, base)
			}
			labels := map[string]string{}
			for _, m := range label.FindAllStringSubmatch(got.argument("LABEL "), -1) {
				labels[m[1]] = m[2]
			}
			if want := p.labels(version{"$VERSION", "$REVISION"}); !maps.Equal(labels, want) {
				t.Errorf("%s: %s has the labels %v, want %v", goos, p.name, labels, want)
			}
			program := "/out/" + p.executable(goos) + " " + p.path(goos)
			if goos == "linux" {
				program = "/images/" + p.name + "/ /"
			}
			for instruction, want := range map[string]string{
				"ENTRYPOINT ":        `["` + p.entrypoint(goos) + `"]`,
				"COPY --from=build ": program,
				"USER ":              map[string]string{"linux": p.user}[goos],
				"ENV ":               map[string]string{"linux": searchPath}[goos],
				"COPY --from=tools ": map[bool]string{true: "/tools/ /"}[p.tools && goos == "linux"],
				"ARG VERSION":        " REVISION",
				"RUN ":               "",
			} {
				if got := got.argument(instruction); got != want {
					t.Errorf("%s: %s has %s%q, want %q", goos, p.name, instruction, got, want)
				}
			}
		}
	}
}

func TestDockerfilesHaveTheSameTools(t *testing.T) {
	s := stages(t, "linux")["tools"]
	var names []string
	for _, tool := range tools {
		names = append(names, path.Base(tool))
	}
	ofBase := func(name string) bool { return name == "base-files" || name == authorities } // distroless has them
	for instruction, want := range map[string][]string{
		"ARG TOOLS=": names, "ARG CONFIGS=": configs, "ARG PACKAGES=": slices.DeleteFunc(slices.Clone(packages),
			ofBase),
	} {
		if got := strings.Fields(strings.Trim(s.argument(instruction), `"`)); !slices.Equal(got, want) {
			t.Errorf("%s%q, want %q", instruction, got, want)
		}
	}
	if s.from != "debian:bookworm-slim" {
		t.Errorf("tools are of %s", s.from)
	}
}

// TestProgramsAreBuiltAsByMakeBuild holds the flags against the Makefile's.
func TestProgramsAreBuiltAsByMakeBuild(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nTAGS = " + tags + "\n", "\nLDFLAGS = " + ldflags + " -X main.version=$(VERSION) -X " + module + "/sidecars/internal/sidecar.version=$(VERSION)\n", " build -trimpath -ldflags='$(LDFLAGS)' -tags $(TAGS) "} {
		if !strings.Contains(string(makefile), want) {
			t.Errorf("the Makefile has no %q", want)
		}
	}
}
