// Package verify checks the files of a release as a user can: without the sources, a network or the
// programs that made it.
package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/causeway-csi/causeway/release/internal/attest"
)

// Options select a release and the checks.
type Options struct {
	Dir           string
	Key           *attest.Key // public key; nil: none
	Version       string      // expected version; "": any
	AllowUnsigned bool        // accept a release without signatures
	AllowUntagged bool        // accept a build of a commit without the tag
}

// Report describes a release that is correct.
type Report struct {
	attest.Build
	Files  int
	Signed bool
}

// String returns the report in a few lines.
func (r Report) String() string {
	signed := "signed by the key"
	if !r.Signed {
		signed = "NOT SIGNED"
	}
	lines := fmt.Sprintf("Causeway %s, %s: %d files are correct\ncommit  %s\nbuilder %s\nGo      %s", r.Version, signed,
		r.Files, r.Commit, r.Builder, r.Go)
	if r.WindowsBase == "" {
		lines += "\nWindows images: INCOMPLETE, without their base layers"
	}
	return lines
}

// Verify checks a release. It reads the contents of files only if their sums are correct. The error
// has all findings.
func Verify(o Options) (Report, error) {
	if o.Key == nil && !o.AllowUnsigned {
		return Report{}, errors.New("no public key: set --key=cosign.pub, or --allow-unsigned for a release " +
			"without signatures")
	}
	sums, err := o.sums()
	if err != nil {
		return Report{}, err
	}
	made, err := o.provenance(sums)
	if err != nil {
		return Report{}, err
	}
	c := content{dir: o.Dir, version: made.Version, build: made, sums: sums, sboms: map[string]bool{}}
	if err := c.check(); err != nil {
		return Report{}, err
	}
	return Report{made, len(sums), o.Key != nil}, nil
}

// sums returns the sums of the files, which are those of the signed checksums.
func (o Options) sums() (attest.Sums, error) {
	list, err := os.ReadFile(filepath.Join(o.Dir, attest.Checksums))
	if err != nil {
		return nil, err
	}
	signature, err := os.ReadFile(filepath.Join(o.Dir, attest.Signature))
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.Key == nil:
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("missing file %s: %w", attest.Signature, attest.ErrUnsigned)
	case err != nil:
		return nil, err
	case o.Key == nil: // any file could have this name
		return nil, fmt.Errorf("the release has %s: verify it with --key", attest.Signature)
	default:
		if err := o.Key.VerifyBlob(list, signature); err != nil {
			return nil, err
		}
	}
	want, err := attest.ParseSums(list)
	if err != nil {
		return nil, err
	}
	files, err := attest.SumDir(o.Dir)
	return files, errors.Join(err, want.Compare(attest.Checksums, files))
}

// provenance returns the build that the signed provenance describes, whose subjects are all files.
func (o Options) provenance(files attest.Sums) (attest.Build, error) {
	none := attest.Build{}
	line, err := os.ReadFile(filepath.Join(o.Dir, attest.Provenance))
	if err != nil {
		return none, err
	}
	envelope, err := attest.ParseEnvelope(line)
	if err != nil {
		return none, err
	}
	if o.Key != nil {
		err = o.Key.VerifyEnvelope(envelope)
	} else if len(envelope.Signatures) > 0 {
		err = fmt.Errorf("%s has a signature: verify it with --key", attest.Provenance)
	}
	if err != nil {
		return none, err
	}
	statement, err := envelope.Statement()
	if err != nil {
		return none, err
	}
	subjects, err := statement.Sums()
	if err != nil {
		return none, err
	}
	made, err := statement.Build()
	if err != nil {
		return none, err
	}
	if again, err := attest.Wrap(attest.NewStatement(made, subjects)); err != nil {
		return none, err
	} else if !bytes.Equal(again.Payload, envelope.Payload) {
		return none, fmt.Errorf("%s: not a statement of this build type", attest.Provenance)
	}
	if made.Untagged && !o.AllowUntagged {
		return none, fmt.Errorf("%s: a test build of commit %s, without the tag %s", attest.Provenance, made.Commit,
			made.Version)
	}
	if o.Version != "" && o.Version != made.Version {
		return none, fmt.Errorf("the release is %s, want %s", made.Version, o.Version)
	}
	return made, subjects.Compare(attest.Provenance, files)
}
