package backend

import "context"

// Modifier is a Backend whose volumes have parameters that can change while they are used.
type Modifier interface {
	// Modify gives the volume's mutable parameters these values, of which there is at least one. Those that aren't named
	// stay as they are; "" is what the volume would have if it had never been named. All of them are applied, durably, or
	// after an error none. Errors: ErrNotFound, for inline volumes too; ErrInvalid for a key, a value, or one that this
	// volume can't have. CSI spec v1.13, ControllerModifyVolume.
	Modify(ctx context.Context, id string, parameters, secrets map[string]string) error
}
