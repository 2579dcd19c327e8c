package attest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
)

// ErrUnsigned is the error of a release that was made without a key.
var ErrUnsigned = errors.New("the release is not signed")

// Key is a public key, of ECDSA as cosign generate-key-pair makes them, or of Ed25519.
type Key struct{ public crypto.PublicKey }

// ParseKey reads a public key in PEM.
func ParseKey(content []byte) (Key, error) {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "PUBLIC KEY" {
		return Key{}, errors.New("invalid key: must be a public key in PEM, such as cosign.pub")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return Key{}, fmt.Errorf("invalid key: %w", err)
	}
	switch public.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return Key{public}, nil
	}
	return Key{}, fmt.Errorf("invalid key of type %T: must be of ECDSA or Ed25519", public)
}

// verify reports whether a signature of content is by the key.
func (k Key) verify(content, signature []byte) bool {
	switch public := k.public.(type) {
	case *ecdsa.PublicKey:
		digest := sha256.Sum256(content)
		return ecdsa.VerifyASN1(public, digest[:], signature)
	case ed25519.PublicKey:
		return ed25519.Verify(public, content, signature)
	}
	return false
}

// bundle is a sigstore bundle of a signature by a key, without a transparency log:
// https://github.com/sigstore/protobuf-specs, sigstore_bundle.proto.
type bundle struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Message *message `json:"messageSignature"`
}

// message is the signature of a file.
type message struct {
	Digest struct {
		Algorithm string `json:"algorithm"`
		Digest    []byte `json:"digest"`
	} `json:"messageDigest"`
	Signature []byte `json:"signature"`
}

// bundleType is the version of the format that cosign v3 writes.
const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Bundle returns the bundle with a signature of content by the key. Each part is determined by its
// arguments, so that VerifyBlob finds a change of any byte.
func (k Key) Bundle(content, signature []byte) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.public)
	if err != nil {
		return nil, err
	}
	b := bundle{MediaType: bundleType, Message: &message{Signature: signature}}
	id, digest := sha256.Sum256(der), sha256.Sum256(content)
	b.Material.PublicKey.Hint = base64.StdEncoding.EncodeToString(id[:])
	b.Message.Digest.Algorithm, b.Message.Digest.Digest = "SHA2_256", digest[:]
	line, err := json.Marshal(b)
	return append(line, '\n'), err
}

// VerifyBlob verifies a bundle that Bundle has made.
func (k Key) VerifyBlob(content, signed []byte) error {
	var b bundle
	if err := strict(signed, &b); err != nil {
		return fmt.Errorf("%s: %w", Signature, err)
	}
	if b.Message == nil {
		return fmt.Errorf("%s: no signature of a file", Signature)
	}
	if !k.verify(content, b.Message.Signature) {
		return fmt.Errorf("%s: not a signature of %s by this key", Signature, Checksums)
	}
	again, err := k.Bundle(content, b.Message.Signature)
	if err == nil && !bytes.Equal(again, signed) {
		err = errors.New("not the bundle that a release has")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", Signature, err)
	}
	return nil
}

// VerifyEnvelope verifies that an envelope has a signature, and that each is by the key.
func (k Key) VerifyEnvelope(e Envelope) error {
	if len(e.Signatures) == 0 {
		return fmt.Errorf("%s: %w", Provenance, ErrUnsigned)
	}
	for _, s := range e.Signatures {
		if !k.verify(e.PAE(), s.Sig) {
			return fmt.Errorf("%s: the signature is not by this key", Provenance)
		}
	}
	return nil
}

// SignatureOf returns the signature of a file in a bundle of cosign.
func SignatureOf(content []byte) ([]byte, error) {
	var b bundle
	if err := json.Unmarshal(content, &b); err != nil {
		return nil, err
	}
	if b.Message == nil {
		return nil, errors.New("the bundle has no signature of a file")
	}
	return b.Message.Signature, nil
}
