package smb

import (
	"context"
	"fmt"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// Reach asks the server of a mount for a connection, without credentials.
func (b *Backend) Reach(ctx context.Context, m mounter.Mount) ([]backend.Condition, error) {
	source, err := mounter.ParseShare(m.Source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	}
	err = b.probes.probe(ctx, source)
	if err == nil || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return []backend.Condition{unreachable(source, err)}, nil
}

func unreachable(source mounter.ShareSource, err error) backend.Condition {
	source.Path = ""
	return backend.Condition{
		Severity: backend.Inaccessible, Reason: "ServerUnreachable",
		Message: fmt.Sprintf("the server of %s does not answer: %v: mounts continue when it answers again", source,
			err),
	}
}
