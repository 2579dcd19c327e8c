package attest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Types of the statement, of its predicate and of its payload in an envelope.
const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	payloadType   = "application/vnd.in-toto+json"
)

// Source is the repository.
const Source = "https://github.com/causeway-csi/causeway"

// BuildType is the page that describes the build and its parameters.
const BuildType = Source + "/blob/main/docs/contributing/release.md"

// Build describes how a release was made.
type Build struct {
	Version     string
	Commit      string // of git
	Time        int64  // of the commit, in seconds since 1970; all files of archives have it
	Go          string // version of the go command, such as go1.26.8
	Builder     string // URI of the party that ran the build
	WindowsBase string // base of the Windows images with its digest, or ""
	Untagged    bool   // whether the commit did not have the tag of the version
}

// Statement is an in-toto statement v1 with a predicate of SLSA provenance v1. It has no time of
// the build, so that two builds have the same statement.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string     `json:"buildType"`
	ExternalParameters   external   `json:"externalParameters"`
	InternalParameters   internal   `json:"internalParameters"`
	ResolvedDependencies []resource `json:"resolvedDependencies"`
}

type external struct {
	Version     string `json:"version"`
	Source      string `json:"source"`
	WindowsBase string `json:"windowsBase,omitempty"`
	Untagged    bool   `json:"untagged,omitempty"`
}

type internal struct {
	SourceDateEpoch int64  `json:"sourceDateEpoch"`
	Go              string `json:"go"`
}

type resource struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

// NewStatement states that a build made files with these sums.
func NewStatement(b Build, sums Sums) Statement {
	source := "git+" + Source + "@refs/tags/" + b.Version
	if b.Untagged {
		source = "git+" + Source
	}
	s := Statement{Type: statementType, PredicateType: predicateType, Predicate: predicate{
		BuildDefinition: buildDefinition{
			BuildType:          BuildType,
			ExternalParameters: external{b.Version, source, b.WindowsBase, b.Untagged},
			InternalParameters: internal{b.Time, b.Go},
			// The commit pins all others: the sums of modules, of Debian's packages and of npm's.
			ResolvedDependencies: []resource{{source, map[string]string{"gitCommit": b.Commit}}},
		},
	}}
	s.Predicate.RunDetails.Builder.ID = b.Builder
	for _, name := range sums.Names() {
		s.Subject = append(s.Subject, subject{name, map[string]string{"sha256": sums[name]}})
	}
	return s
}

// Build returns the build that the statement describes.
func (s Statement) Build() (Build, error) {
	d := s.Predicate.BuildDefinition
	b := Build{
		Version: d.ExternalParameters.Version, Time: d.InternalParameters.SourceDateEpoch,
		Go: d.InternalParameters.Go, Builder: s.Predicate.RunDetails.Builder.ID,
		WindowsBase: d.ExternalParameters.WindowsBase, Untagged: d.ExternalParameters.Untagged,
	}
	for _, r := range d.ResolvedDependencies {
		if r.URI == d.ExternalParameters.Source {
			b.Commit = r.Digest["gitCommit"]
		}
	}
	if b.Version == "" || b.Commit == "" {
		return b, fmt.Errorf("%s: no version, or no commit", Provenance)
	}
	return b, nil
}

// Sums returns the checksums of the subjects.
func (s Statement) Sums() (Sums, error) {
	sums := Sums{}
	for _, sub := range s.Subject {
		if sums[sub.Name] != "" {
			return nil, fmt.Errorf("%s: two subjects %q", Provenance, sub.Name)
		}
		sums[sub.Name] = sub.Digest["sha256"]
	}
	return sums, nil
}

// Envelope is a DSSE envelope: https://github.com/secure-systems-lab/dsse, v1.0.
type Envelope struct {
	PayloadType string              `json:"payloadType"`
	Payload     []byte              `json:"payload"`
	Signatures  []EnvelopeSignature `json:"signatures"`
}

// EnvelopeSignature is a signature of Envelope.PAE.
type EnvelopeSignature struct {
	Sig []byte `json:"sig"` // without keyid, which no signature covers
}

// Wrap puts a statement into an envelope without signatures.
func Wrap(s Statement) (Envelope, error) {
	payload, err := json.Marshal(s)
	return Envelope{PayloadType: payloadType, Payload: payload, Signatures: []EnvelopeSignature{}}, err
}

// PAE returns the bytes that are signed: the pre-authentication encoding of DSSE v1.
func (e Envelope) PAE() []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
}

// Format returns the envelope as a line.
func (e Envelope) Format() ([]byte, error) {
	line, err := json.Marshal(e)
	return append(line, '\n'), err
}

// ParseEnvelope reads an envelope in exactly the format that Format writes.
func ParseEnvelope(line []byte) (Envelope, error) {
	var e Envelope
	if err := strict(line, &e); err != nil {
		return e, fmt.Errorf("%s: %w", Provenance, err)
	}
	again, err := e.Format()
	if err == nil && !bytes.Equal(again, line) {
		err = errors.New("must be an envelope on one line, without spaces")
	}
	if err != nil {
		return e, fmt.Errorf("%s: %w", Provenance, err)
	}
	return e, nil
}

// Statement returns the statement in the envelope.
func (e Envelope) Statement() (s Statement, err error) {
	if e.PayloadType != payloadType {
		return s, fmt.Errorf("%s: invalid payload type %q: must be %q", Provenance, e.PayloadType, payloadType)
	}
	if err := strict(e.Payload, &s); err != nil {
		return s, fmt.Errorf("%s: %w", Provenance, err)
	}
	if s.Type != statementType || s.PredicateType != predicateType {
		return s, fmt.Errorf("%s: invalid types %q and %q: must be %q and %q", Provenance, s.Type, s.PredicateType,
			statementType, predicateType)
	}
	return s, nil
}

// strict parses JSON, all of which must have a place in v.
func strict(content []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON object")
	}
	return nil
}
