package verify_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/release/internal/attest"
	"github.com/causeway-csi/causeway/release/internal/build"
	"github.com/causeway-csi/causeway/release/internal/releasetest"
	"github.com/causeway-csi/causeway/release/internal/verify"
)

// made is a signed release.
type made struct {
	dir    string
	signer releasetest.Signer
}

// make makes a release. Change may change the options.
func makeRelease(t *testing.T, change func(*build.Options)) made {
	t.Helper()
	signer := releasetest.NewSigner(t)
	o := releasetest.Options(t, releasetest.Repository(t), signer)
	if change != nil {
		change(&o)
	}
	if err := build.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return made{o.Out, signer}
}

// verify verifies the release by its key.
func (m made) verify() error {
	key := m.signer.Key()
	_, err := verify.Verify(verify.Options{Dir: m.dir, Key: &key})
	return err
}

// files returns the contents of all files.
func (m made) files(t *testing.T) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, e := range entries {
		if all[e.Name()], err = os.ReadFile(filepath.Join(m.dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// write replaces a file.
func (m made) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAReleaseIsCorrect(t *testing.T) {
	m := makeRelease(t, nil)
	key := m.signer.Key()
	report, err := verify.Verify(verify.Options{Dir: m.dir, Key: &key, Version: releasetest.Version})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.files(t)) - 3; report.Files != n || !report.Signed || report.Version != releasetest.Version ||
		len(report.Commit) != 40 {
		t.Errorf("%+v, want %d files", report, n)
	}
}

// TestIncompleteWindowsImagesAreReported: the log of the build and the report name them.
func TestIncompleteWindowsImagesAreReported(t *testing.T) {
	const want = "Windows images: INCOMPLETE, without their base layers"
	for base, incomplete := range map[string]bool{"": true, "registry.example/base@sha256:abc": false} {
		var log strings.Builder
		m := makeRelease(t, func(o *build.Options) { o.WindowsBase, o.Log = base, &log })
		key := m.signer.Key()
		report, err := verify.Verify(verify.Options{Dir: m.dir, Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"log": log.String(), "report": report.String()} {
			if strings.Contains(text, want) != incomplete {
				t.Errorf("base %q: the %s has the line %q: %t, want %t\n%s", base, name, want, !incomplete, incomplete, text)
			}
		}
	}
}

// TestAManipulatedByteIsFound changes a byte at the beginning, in the middle and at the end of each
// file of a release, and each byte of the files with signatures. Every change is an error.
func TestAManipulatedByteIsFound(t *testing.T) {
	m := makeRelease(t, nil)
	changed := 0
	for name, content := range m.files(t) {
		places := []int{0, len(content) / 2, len(content) - 1}
		if name == attest.Signature || name == attest.Provenance {
			places = nil
			for i := 0; i < len(content); i += 1 + len(content)/400 {
				places = append(places, i)
			}
		}
		for _, at := range places {
			manipulated := append([]byte{}, content...)
			manipulated[at] ^= 1
			m.write(t, name, manipulated)
			if err := m.verify(); err == nil {
				t.Errorf("byte %d of %s is manipulated, and the release is correct", at, name)
			}
			changed++
		}
		m.write(t, name, content)
	}
	if err := m.verify(); err != nil {
		t.Errorf("the release of before: %v", err)
	}
	if changed < 300 {
		t.Errorf("only %d changes", changed)
	}
}

// TestOtherFilesAreFound: a missing file, an unexpected file, and two files whose names are
// swapped.
func TestOtherFilesAreFound(t *testing.T) {
	m := makeRelease(t, nil)
	all := m.files(t)
	last, swapped := "driver.tar", 0
	for name, content := range all {
		if err := os.Remove(filepath.Join(m.dir, name)); err != nil {
			t.Fatal(err)
		}
		want := "missing file " + name
		if name == attest.Checksums || name == attest.Provenance {
			want = name + ": no such file"
		}
		if err := m.verify(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v, want %s", name, err, want)
		}
		if name != last {
			m.write(t, name, all[last])
			m.write(t, last, content)
			if err := m.verify(); err == nil {
				t.Errorf("%s and %s are swapped, and the release is correct", name, last)
			}
			m.write(t, last, all[last])
			swapped++
		}
		m.write(t, name, content)
	}
	if swapped < 20 {
		t.Errorf("only %d pairs", swapped)
	}
	for _, name := range []string{"extra", "copy_of_driver.tar", ".hidden"} {
		m.write(t, name, all["driver.tar"])
		if err := m.verify(); err == nil || !strings.Contains(err.Error(), "unexpected file "+name) {
			t.Errorf("with %s: %v", name, err)
		}
		if err := os.Remove(filepath.Join(m.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("driver.tar", filepath.Join(m.dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), "unexpected link") {
		t.Errorf("with a link: %v", err)
	}
}

func TestOtherKeysAndVersionsAreRejected(t *testing.T) {
	m, other := makeRelease(t, nil), releasetest.NewSigner(t).Key()
	key := m.signer.Key()
	for name, tc := range map[string]struct {
		options verify.Options
		want    string
	}{
		"another key":        {verify.Options{Dir: m.dir, Key: &other}, "not a signature of CHECKSUMS by this key"},
		"another version":    {verify.Options{Dir: m.dir, Key: &key, Version: "v0.2.0"}, "the release is v0.1.0, want v0.2.0"},
		"no key":             {verify.Options{Dir: m.dir}, "no public key"},
		"a signature unread": {verify.Options{Dir: m.dir, AllowUnsigned: true}, "verify it with --key"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := verify.Verify(tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// TestAnUnsignedReleaseNeedsAFlag: with a key it is an error, also if only a signature is missing.
func TestAnUnsignedReleaseNeedsAFlag(t *testing.T) {
	m := makeRelease(t, func(o *build.Options) { o.Signer = nil })
	if err := m.verify(); !errors.Is(err, attest.ErrUnsigned) {
		t.Errorf("%v, want %v", err, attest.ErrUnsigned)
	}
	report, err := verify.Verify(verify.Options{Dir: m.dir, AllowUnsigned: true})
	if err != nil || report.Signed || !strings.Contains(report.String(), "NOT SIGNED") {
		t.Errorf("%v, %s", err, report)
	}
	signature, err := m.signer.Sign(t.Context(), m.files(t)[attest.Checksums])
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := m.signer.Key().Bundle(m.files(t)[attest.Checksums], signature)
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, attest.Signature, bundle)
	if err := m.verify(); !errors.Is(err, attest.ErrUnsigned) {
		t.Errorf("provenance without a signature: %v, want %v", err, attest.ErrUnsigned)
	}
}

func TestATestBuildNeedsAFlag(t *testing.T) {
	m := makeRelease(t, func(o *build.Options) {
		o.Untagged = true
		releasetest.Write(t, filepath.Join(o.Root, "later"), "later")
		releasetest.Git(t, o.Root, "add", ".")
		releasetest.Git(t, o.Root, "commit", "--quiet", "--message=later")
	})
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), "without the tag v0.1.0") {
		t.Errorf("%v", err)
	}
	key := m.signer.Key()
	if report, err := verify.Verify(verify.Options{Dir: m.dir, Key: &key, AllowUntagged: true}); err != nil ||
		!report.Untagged {
		t.Errorf("%v, %+v", err, report)
	}
}

// TestAnotherBuildTypeIsRejected: a statement of the key's owner about another kind of build.
func TestAnotherBuildTypeIsRejected(t *testing.T) {
	m := makeRelease(t, nil)
	envelope, err := attest.ParseEnvelope(m.files(t)[attest.Provenance])
	if err != nil {
		t.Fatal(err)
	}
	envelope.Payload = []byte(strings.Replace(string(envelope.Payload), attest.BuildType, "https://example.com/build", 1))
	signature, err := m.signer.Sign(t.Context(), envelope.PAE())
	if err != nil {
		t.Fatal(err)
	}
	envelope.Signatures[0].Sig = signature
	line, err := envelope.Format()
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, attest.Provenance, line)
	if err := m.verify(); err == nil || !strings.Contains(err.Error(), "not a statement of this build type") {
		t.Errorf("%v", err)
	}
}

// again signs a release after a change of its files, as the maintainer would: only the checks of
// contents can find the change.
func (m made) again(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	envelope, err := attest.ParseEnvelope(m.files(t)[attest.Provenance])
	if err != nil {
		t.Fatal(err)
	}
	statement, err := envelope.Statement()
	if err != nil {
		t.Fatal(err)
	}
	b, err := statement.Build()
	if err != nil {
		t.Fatal(err)
	}
	sums, err := attest.SumDir(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	list := sums.Format()
	m.write(t, attest.Checksums, list)
	signature, err := m.signer.Sign(ctx, list)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := m.signer.Key().Bundle(list, signature)
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, attest.Signature, bundle)
	if envelope, err = attest.Wrap(attest.NewStatement(b, sums)); err != nil {
		t.Fatal(err)
	}
	if signature, err = m.signer.Sign(ctx, envelope.PAE()); err != nil {
		t.Fatal(err)
	}
	envelope.Signatures = []attest.EnvelopeSignature{{Sig: signature}}
	line, err := envelope.Format()
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, attest.Provenance, line)
}
