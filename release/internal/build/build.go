// Package build makes the files of a release from a tag: docs/contributing/release.md.
package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/causeway-csi/causeway/release/internal/archive"
	"github.com/causeway-csi/causeway/release/internal/attest"
)

// module is the module of the repository's root.
const module = "github.com/causeway-csi/causeway"

// Options are the parameters of a release.
type Options struct {
	Root        string // directory of the repository. After the checks it is a clone of the commit.
	Out         string // directory of the release; must be empty or absent
	Version     string // such as v1.2.3, which is also the tag of git
	WindowsBase string // base of the Windows images with its digest, or ""
	Builder     string // URI of the party that runs the build
	Untagged    bool   // permits a commit without the tag
	Maker       Maker
	Signer      Signer // nil: the release is not signed
	Log         io.Writer
}

// Maker makes the parts that take minutes, from the sources in Release.Root.
type Maker interface {
	// GoVersion returns the version of the go command, such as go1.26.8.
	GoVersion(ctx context.Context, r *Release) (string, error)
	// Images writes the archives of images, their SBOMs, digests.txt and programs/ into dir.
	Images(ctx context.Context, r *Release, dir string) error
	// CopyImages does the same for container copy.
	CopyImages(ctx context.Context, r *Release, dir string) error
	// Program writes a program for a platform, such as linux/amd64, to a file.
	Program(ctx context.Context, r *Release, p Program, platform, to string) error
	// Licenses returns the licenses of the modules that a program is made of.
	Licenses(ctx context.Context, r *Release, p Program, platform string) ([]byte, error)
	// Docs writes the documentation site into dir.
	Docs(ctx context.Context, r *Release, dir string) error
}

// Signer signs with a private key.
type Signer interface {
	// Key returns the public key.
	Key() attest.Key
	// Sign returns a signature of content: of its SHA-256 sum by ECDSA, or of itself by Ed25519.
	Sign(ctx context.Context, content []byte) ([]byte, error)
}

// Release is a release under construction.
type Release struct {
	Options
	made attest.Build
	work string // directory of parts that are no artifacts
}

// number is the version without the letter v, as Helm and Semantic Versioning write it.
func (r *Release) number() string { return strings.TrimPrefix(r.Version, "v") }

// at is the time of all files in archives.
func (r *Release) at() time.Time { return time.Unix(r.made.Time, 0).UTC() }

// Make makes a release. The directory appears when the release is complete.
func Make(ctx context.Context, o Options) (err error) {
	r := &Release{Options: o}
	if err := r.check(ctx); err != nil {
		return err
	}
	if r.WindowsBase == "" { // the report of the verification repeats this, but after the whole build
		fmt.Fprintln(r.Log, "Windows images: INCOMPLETE, without their base layers. Set --windows-base.")
	}
	out := r.Out
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	if r.Out, err = os.MkdirTemp(filepath.Dir(out), "."+filepath.Base(out)+".part-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.Out) // there only after a failure
	if r.work, err = os.MkdirTemp("", "causeway-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := r.clone(ctx); err != nil {
		return err
	}
	if r.made.Go, err = r.Maker.GoVersion(ctx, r); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"release notes", r.notes},
		{"images", r.images},
		{"programs", r.programs},
		{"charts", r.charts},
		{"manifests", r.manifests},
		{"documentation", r.docs},
		{"sources", r.unchanged},
		{"checksums and provenance", r.attest},
	} {
		began := time.Now()
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(r.Log, "%5.1f s  %s\n", time.Since(began).Seconds(), step.name)
	}
	if err := os.Chmod(r.Out, 0o755); err != nil {
		return err
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) { // an empty directory
		return err
	}
	return os.Rename(r.Out, out)
}

// write writes an artifact.
func (r *Release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.Out, name), content, 0o644)
}

// pack writes an artifact that is an archive: .zip, or a compressed tar.
func (r *Release) pack(name string, files []archive.File) error {
	var out bytes.Buffer
	format := archive.TarGz
	if filepath.Ext(name) == ".zip" {
		format = archive.Zip
	}
	if err := format(&out, r.at(), files); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return r.write(name, out.Bytes())
}

// move moves the files of a directory that match a pattern to the artifacts, and returns their
// number.
func (r *Release) move(dir, pattern string) (int, error) {
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		to := filepath.Join(r.Out, filepath.Base(path))
		if _, err := os.Lstat(to); err == nil {
			return 0, fmt.Errorf("two artifacts %s", filepath.Base(path))
		}
		if err := moveFile(path, to); err != nil {
			return 0, err
		}
	}
	return len(paths), nil
}

// moveFile moves a file, perhaps to another filesystem.
func moveFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Remove(from))
}
