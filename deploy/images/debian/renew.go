package debian

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	version "github.com/knqyf263/go-deb-version"
	"github.com/ulikunitz/xz"
)

// suite is a part of a release, with an index of its own.
type suite struct{ archive, name, prefix string }

// suites are those of Debian 12. The second suite gets the repairs since the last point release.
var suites = []suite{{"debian", "bookworm", "main"}, {"debian-security", "bookworm-security", "main"}}

// Keyring has the keys that Debian signs its indices with: the package debian-archive-keyring.
const Keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// maxIndex bounds an index, in bytes.
const maxIndex = 64 << 20

// Renew returns a lock with the newest version of each package for each architecture. Its content
// was signed by Debian: gpgv checks the signature of each suite's InRelease, which has the sums of
// the indices, which have those of packages.
func Renew(ctx context.Context, mirror, keyring string, now time.Time, names, arches []string) (Lock, error) {
	l := Lock{Snapshot: now.UTC().Format("20060102T150405Z")}
	newest := map[[2]string]Package{} // by name and architecture
	for _, s := range suites {
		sums, err := s.release(ctx, mirror, keyring, now)
		if err != nil {
			return l, fmt.Errorf("%s: %w", s.name, err)
		}
		for _, arch := range arches {
			found, err := s.index(ctx, mirror, sums, arch)
			if err != nil {
				return l, fmt.Errorf("%s: %w", s.name, err)
			}
			for _, p := range found {
				if !slices.Contains(names, p.Name) {
					continue
				}
				key := [2]string{p.Name, p.Arch}
				if newer, err := p.newerThan(newest[key]); err != nil {
					return l, err
				} else if newer {
					newest[key] = p
				}
			}
		}
	}
	for _, p := range newest {
		l.Packages = append(l.Packages, p)
	}
	slices.SortFunc(l.Packages, func(a,
		b Package) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Arch, b.Arch))
	})
	for _, name := range names {
		for _, arch := range arches {
			if !slices.ContainsFunc(l.For(arch), func(p Package) bool { return p.Name == name }) {
				return l, fmt.Errorf("there is no %s for %s in Debian", name, arch)
			}
		}
	}
	return l, nil
}

func (p Package) newerThan(other Package) (bool, error) {
	if other.Name == "" {
		return true, nil
	}
	a, err := version.NewVersion(p.Version)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.Name, err)
	}
	b, err := version.NewVersion(other.Version)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.Name, err)
	}
	return a.GreaterThan(b), nil
}

// entry is the sum and size of an index.
type entry struct {
	sum  string
	size int64
}

// release returns the indices of a suite, by name, whose signature by Debian gpgv has verified.
func (s suite) release(ctx context.Context, mirror, keyring string, now time.Time) (map[string]entry, error) {
	signed, err := get(ctx, mirror+"/"+s.archive+"/dists/"+s.name+"/InRelease", maxIndex)
	if err != nil {
		return nil, err
	}
	text, err := verified(ctx, keyring, signed)
	if err != nil {
		return nil, err
	}
	sums, inSums := map[string]entry{}, false
	codename := ""
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		switch f := strings.Fields(line); {
		case strings.HasPrefix(line, " ") && inSums && len(f) == 3:
			size, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return nil, err
			}
			sums[f[2]] = entry{f[0], size}
			continue
		case key == "Codename":
			codename = strings.TrimSpace(value)
		case key == "Valid-Until": // otherwise a mirror could hold back repairs
			until, err := time.Parse(time.RFC1123, strings.TrimSpace(value))
			if err != nil || now.After(until) {
				return nil, fmt.Errorf("its index was valid until %s: %w", value,
					cmp.Or(err, errors.New("the mirror is out of date")))
			}
		}
		inSums = key == "SHA256"
	}
	if codename != s.name || len(sums) == 0 { // all suites are signed with the same keys
		return nil, fmt.Errorf("the mirror's InRelease is of %q, with %d sums", codename, len(sums))
	}
	return sums, nil
}

// verified returns the text of a clear-signed file.
func verified(ctx context.Context, keyring string, signed []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "causeway-lock-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in := filepath.Join(dir, "InRelease")
	if err := os.WriteFile(in, signed, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "gpgv", "--keyring", keyring, "--output", "-", in)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	text, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("gpgv is needed to verify Debian's signature: install the packages gpgv and " +
			"debian-archive-keyring")
	}
	if err != nil {
		return nil, fmt.Errorf("gpgv: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return text, nil
}

// index returns the packages that a suite has for an architecture.
func (s suite) index(ctx context.Context, mirror string, sums map[string]entry, arch string) ([]Package, error) {
	name := s.prefix + "/binary-" + arch + "/Packages.xz"
	want, ok := sums[name]
	if !ok {
		return nil, fmt.Errorf("it has no %s", name)
	}
	content, err := get(ctx, mirror+"/"+s.archive+"/dists/"+s.name+"/"+name, maxIndex)
	if err != nil {
		return nil, err
	}
	if sum(content) != want.sum || int64(len(content)) != want.size {
		return nil, fmt.Errorf("%s differs from the signed index: the mirror is being updated, or is not to be trusted",
			name)
	}
	plain, err := xz.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	return readIndex(s.archive, plain)
}

// readIndex reads an index: paragraphs of fields.
func readIndex(archive string, r io.Reader) (all []Package, err error) {
	fields := map[string]string{}
	end := func() error {
		if len(fields) == 0 {
			return nil
		}
		size, err := strconv.ParseInt(fields["Size"], 10, 64)
		if err != nil {
			return fmt.Errorf("the size of %s: %w", fields["Package"], err)
		}
		all = append(all, Package{archive, fields["Architecture"], fields["Package"], fields["Version"], size,
			fields["SHA256"], fields["Filename"]})
		clear(fields)
		return nil
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			if err := end(); err != nil {
				return nil, err
			}
		} else if key, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' {
			fields[key] = value
		}
	}
	return all, errors.Join(lines.Err(), end())
}
