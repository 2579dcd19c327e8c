package store

import (
	"errors"
	"testing"

	"github.com/causeway-csi/causeway/pkg/backend/internal/record"
)

func TestAnIdentityHasAUUID(t *testing.T) {
	if err := (&identity{UUID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}).check(); err != nil {
		t.Error(err)
	}
	for _, uuid := range []string{"", "6BA7B810-9dad-11d1-80b4-00c04fd430c8"} {
		if err := (&identity{UUID: uuid}).check(); !errors.Is(err, record.ErrDamaged) {
			t.Errorf("check with the UUID %q = %v, want ErrDamaged", uuid, err)
		}
	}
}
