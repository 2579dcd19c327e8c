package works

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// auditPolicy has the API server write down when a service account's watch begins, and when it ends. Its metrics count
// watches too, but not whose they are.
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
