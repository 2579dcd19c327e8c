package works

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// auditPolicy has the API server write down when a service account's watch begins, and when it
// ends. Its metrics count watches too, but not whose they are.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [watch]
  userGroups: ["system:serviceaccounts"]
- level: None
`

func auditLog() string { return filepath.Join(world.dir, "audit.log") }

// watches are how many watches of a user are open now, by the resource.
func watches(t *testing.T, user string) map[string]int {
	t.Helper()
	log := must(os.ReadFile(auditLog()))(t)
	open := map[string]int{}
	for line := range strings.Lines(string(log)) {
		var e struct {
			Stage     string
			User      struct{ Username string }
			ObjectRef struct{ Resource, APIGroup string }
		}
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.User.Username != user {
			continue
		}
		resource := strings.TrimSuffix(e.ObjectRef.Resource+"."+e.ObjectRef.APIGroup, ".")
		switch e.Stage {
		case "ResponseStarted":
			open[resource]++
		case "ResponseComplete":
			open[resource]--
		}
	}
	return open
}

// The watches of all of a driver's controllers and the health monitor, for a driver with all
// capabilities and topology: each kind once, though upstream's four processes have 19 watches.
func TestEveryKindIsWatchedOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, topological.use(t), late)
	want := map[string]int{
		"persistentvolumeclaims": 1, "persistentvolumes": 1, "pods": 1, "nodes": 1,
		"storageclasses.storage.k8s.io": 1, "csinodes.storage.k8s.io": 1, "volumeattachments.storage.k8s.io": 1, "volumeattributesclasses.storage.k8s.io": 1,
		"volumesnapshots.snapshot.storage.k8s.io": 1, "volumesnapshotcontents.snapshot.storage.k8s.io": 1, "volumesnapshotclasses.snapshot.storage.k8s.io": 1,
		"volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io": 1, "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io": 1,
	}
	once := func(context.Context) error { // a watch that ends is absent until the next one begins
		if have := watches(t, l.s.user); !maps.Equal(have, want) {
			return fmt.Errorf("these are watched: %v, not %v", have, want)
		}
		return nil
	}
	until(t, "every kind is watched", once)
	// No controller adds a watch when it begins to work.
	_, volume := l.bound("claim", selected("topology", "a"))
	l.attached(volume, nodeIn(l.s.driver.Name, "a"))
	l.askFor("claim", "2Gi")
	l.awaitGrown("claim", 2<<30)
	until(t, "every kind is watched after work", once)
}
