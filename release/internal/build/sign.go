package build

import (
	"context"

	"github.com/causeway-csi/causeway/release/internal/attest"
)

// attest writes the checksums and the provenance, and signs both if there is a key.
func (r *Release) attest(ctx context.Context) error {
	sums, err := attest.SumDir(r.Out)
	if err != nil {
		return err
	}
	list := sums.Format()
	if err := r.write(attest.Checksums, list); err != nil {
		return err
	}
	envelope, err := attest.Wrap(attest.NewStatement(r.made, sums))
	if err != nil {
		return err
	}
	if r.Signer != nil {
		if err := r.sign(ctx, list, &envelope); err != nil {
			return err
		}
	}
	line, err := envelope.Format()
	if err != nil {
		return err
	}
	return r.write(attest.Provenance, line)
}

// sign writes the signature of the checksums, and adds one to the envelope of the provenance.
func (r *Release) sign(ctx context.Context, list []byte, e *attest.Envelope) error {
	signature, err := r.Signer.Sign(ctx, list)
	if err != nil {
		return err
	}
	bundle, err := r.Signer.Key().Bundle(list, signature)
	if err != nil {
		return err
	}
	if err := r.write(attest.Signature, bundle); err != nil {
		return err
	}
	if signature, err = r.Signer.Sign(ctx, e.PAE()); err != nil {
		return err
	}
	e.Signatures = []attest.EnvelopeSignature{{Sig: signature}}
	return nil
}
