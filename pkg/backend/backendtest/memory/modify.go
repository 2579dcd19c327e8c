package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/causeway-csi/causeway/pkg/backend"
)

// tierKey is the one parameter of volumes, and the one that can be changed: on which storage a volume is. Here all of it
// is memory.
const tierKey = "tier"

// tiers are its values. The first is the default.
var tiers = []string{"standard", "fast", "archive"}

// checkTier returns an error for parameters that there aren't, or that have none of these values.
func checkTier(parameters map[string]string, values ...string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch value := parameters[key]; {
		case key != tierKey:
			return fmt.Errorf("%w: unknown parameter %.64q", backend.ErrInvalid, key)
		case !slices.Contains(values, value):
			return fmt.Errorf("%w: invalid %s %.64q: must be one of %q", backend.ErrInvalid, tierKey, value, values)
		}
	}
	return nil
}

// checkMutable does so for those that change a volume: "" undoes what others did.
func checkMutable(parameters map[string]string) error {
	return checkTier(parameters, append([]string{""}, tiers...)...)
}

// tier is on which storage a volume is.
type tier struct {
	made string // what its parameters said, or the default
	now  string // what a mutable parameter says; "": none does
}

// tierOf returns what is asked of a new volume.
func tierOf(o backend.CreateOptions) tier {
	return tier{made: cmp.Or(o.Parameters[tierKey], tiers[0]), now: o.Mutable[tierKey]}
}

func (t tier) parameters() map[string]string { return map[string]string{tierKey: t.made} }

func (t tier) mutable() map[string]string { return map[string]string{tierKey: cmp.Or(t.now, t.made)} }

// fits reports whether t is what o asks for. A mutable parameter that o doesn't name may have changed since.
func (t tier) fits(o backend.CreateOptions) bool {
	asked := tierOf(o)
	_, named := o.Mutable[tierKey]
	return t.made == asked.made && (!named || maps.Equal(t.mutable(), asked.mutable()))
}

// Modify changes the tier, or with "" undoes all changes.
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
