package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// tierKey is the only parameter of a volume, and is mutable: the storage tier. All tiers of this
// backend are memory.
const tierKey = "tier"

// tiers are the values of tierKey. The first is the default.
var tiers = []string{"standard", "fast", "archive"}

// checkTier returns ErrInvalid for a key other than tierKey, and for a value that is not in values.
func checkTier(parameters map[string]string, values ...string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch value := parameters[key]; {
		case key != tierKey:
			return fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
		case !slices.Contains(values, value):
			return fmt.Errorf("%w: invalid %s %.64q: must be in %q", backend.ErrInvalid, tierKey, value, values)
		}
	}
	return nil
}

// checkMutable is checkTier for mutable parameters. They may also be "", which resets the
// parameter.
func checkMutable(parameters map[string]string) error {
	return checkTier(parameters, append([]string{""}, tiers...)...)
}

// tier is the storage tier of a volume.
type tier struct {
	made string // value of the parameter at creation, or the default
	now  string // value of the mutable parameter; "": not set
}

// tierOf returns the tier that o requests for a new volume.
func tierOf(o backend.CreateOptions) tier {
	return tier{made: cmp.Or(o.Parameters[tierKey], tiers[0]), now: o.Mutable[tierKey]}
}

func (t tier) parameters() map[string]string { return map[string]string{tierKey: t.made} }

func (t tier) mutable() map[string]string { return map[string]string{tierKey: cmp.Or(t.now, t.made)} }

// fits reports whether a volume with tier t satisfies o. If o does not name the mutable parameter,
// its present value has no effect: Modify may have changed it.
func (t tier) fits(o backend.CreateOptions) bool {
	requested := tierOf(o)
	_, named := o.Mutable[tierKey]
	return t.made == requested.made && (!named || maps.Equal(t.mutable(), requested.mutable()))
}

// Modify sets the tier of the volume. The value "" resets it. See [backend.Modifier] for the
// errors. CSI spec v1.13, ControllerModifyVolume.
func (b *Backend) Modify(_ context.Context, id string, parameters, _ map[string]string) error {
	if err := checkMutable(parameters); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	v, err := b.findPersistent(id)
	if err != nil {
		return err
	}
	if value, ok := parameters[tierKey]; ok {
		v.tier.now = value
	}
	return nil
}
