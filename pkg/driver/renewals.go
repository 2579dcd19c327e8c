package driver

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"sync"

	"github.com/causeway-csi/causeway/pkg/backend"
	"github.com/causeway-csi/causeway/pkg/mounter"
)

// renewals remembers by staging path with which secrets a volume was mounted, as a digest with a
// random key, and the condition of a failed change. It is in memory only. The zero value is empty
// and usable.
type renewals struct {
	mu     sync.Mutex
	key    [32]byte
	byPath map[string]renewal
}

type renewal struct {
	digest    [32]byte
	condition *backend.Condition // of the last change, if it failed
}

// changed reports whether the secrets of a repeated publish differ from those that the volume at
// the staging path has. known is false if its secrets are not known: the driver was started again.
func (r *renewals) changed(path string, secrets map[string]string) (changed, known bool) {
	if len(secrets) == 0 {
		return false, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.byPath[path]
	return !known || old.digest != r.digest(secrets) || old.condition != nil, known
}

// done records the result of a change. After a failure the next publish retries.
func (r *renewals) done(path string, secrets map[string]string, err error) {
	if len(secrets) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byPath == nil {
		r.byPath = map[string]renewal{}
		rand.Read(r.key[:])
	}
	n := renewal{digest: r.digest(secrets)}
	switch {
	case errors.Is(err, mounter.ErrCredentials):
		n.condition = &backend.Condition{Severity: backend.Degraded, Reason: "CredentialsNotChanged",
			Message: err.Error()}
	case err != nil:
		n.condition = &backend.Condition{Severity: backend.Degraded, Reason: "CredentialsNotVerified",
			Message: err.Error()}
	}
	r.byPath[path] = n
}

func (r *renewals) forget(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byPath, path)
}

// conditions returns the condition of the volume at a staging path.
func (r *renewals) conditions(path string) []backend.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byPath[path].condition; c != nil {
		return []backend.Condition{*c}
	}
	return nil
}

// digest returns the digest of secrets. The keys of a JSON object are sorted.
func (r *renewals) digest(secrets map[string]string) [32]byte {
	text, err := json.Marshal(secrets)
	if err != nil { // a map of strings has a JSON form
		panic(err)
	}
	mac := hmac.New(sha256.New, r.key[:])
	mac.Write(text)
	return [32]byte(mac.Sum(nil))
}
