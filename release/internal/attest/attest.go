// Package attest has the files by which a release is verified: the checksums of all artifacts, the
// provenance, and a signature of each.
package attest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// Files of a release that are not artifacts. The checksums do not cover them: an ECDSA signature is
// different each time, and the checksums of two builds must be equal.
const (
	Checksums  = "CHECKSUMS"
	Signature  = "CHECKSUMS.sigstore.json" // of Checksums, as cosign verify-blob --bundle reads it
	Provenance = "provenance.intoto.jsonl" // a statement in a DSSE envelope
)

// IsArtifact reports whether a file of a release has a checksum.
func IsArtifact(name string) bool {
	return name != Checksums && name != Signature && name != Provenance
}

// Sums are SHA-256 checksums in hexadecimal digits, by the name of the file.
type Sums map[string]string

// Sum returns the checksum of a file.
func Sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// SumDir returns the checksums of the artifacts in a directory, which may have nothing but regular
// files.
func SumDir(dir string) (Sums, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sums := Sums{}
	var failures []error
	for _, e := range entries {
		if !e.Type().IsRegular() {
			failures = append(failures, fmt.Errorf("unexpected %s: must be a regular file", e.Name()))
			continue
		}
		if !IsArtifact(e.Name()) {
			continue
		}
		sum, err := Sum(filepath.Join(dir, e.Name()))
		if err != nil {
			failures = append(failures, err)
		}
		sums[e.Name()] = sum
	}
	return sums, errors.Join(failures...)
}

// Format writes checksums in the format of sha256sum.
func (s Sums) Format() []byte {
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&out, "%s  %s\n", s[name], name)
	}
	return out.Bytes()
}

var sumLine = regexp.MustCompile(`^([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._-]*)$`)

// ParseSums reads checksums in exactly the format that Format writes.
func ParseSums(content []byte) (Sums, error) {
	sums := Sums{}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		m := sumLine.FindStringSubmatch(lines.Text())
		if m == nil {
			return nil, fmt.Errorf("%s: invalid line %q: must be a SHA-256 sum and a file name", Checksums,
				lines.Text())
		}
		sums[m[2]] = m[1]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", Checksums, err)
	}
	if !bytes.Equal(sums.Format(), content) {
		return nil, fmt.Errorf("%s: must have each file once, in the order of the names", Checksums)
	}
	return sums, nil
}

// Compare returns an error for each difference between the expected sums, whose source has a name,
// and those of the files.
func (s Sums) Compare(source string, files Sums) error {
	var failures []error
	for _, name := range slices.Sorted(maps.Keys(s)) {
		switch got, ok := files[name]; {
		case !ok:
			failures = append(failures, fmt.Errorf("missing file %s: %s has it", name, source))
		case got != s[name]:
			failures = append(failures, fmt.Errorf("wrong content of %s: its sum is %s, %s has %s", name, got, source,
				s[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, ok := s[name]; !ok {
			failures = append(failures, fmt.Errorf("unexpected file %s: %s does not have it", name, source))
		}
	}
	return errors.Join(failures...)
}

// Names returns the names of the files, sorted.
func (s Sums) Names() []string { return slices.Sorted(maps.Keys(s)) }
