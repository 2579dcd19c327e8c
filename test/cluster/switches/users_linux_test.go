package switches

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/components"
)

// handler is the runtime for pods in user namespaces.
const handler = "userns"

// inUserNamespace is the spec of a pod with a user namespace, on a node, with an fsGroup.
const inUserNamespace = `hostUsers: false
  runtimeClassName: ` + handler + `
  securityContext: {fsGroup: 2000}
  `

// TestUserNamespaces: a pod with hostUsers: false uses volumes of each kind. Root in the pod, which
// is another user of the node, owns its files as uid 0 in the volume, also for a pod without a user
// namespace.
func TestUserNamespaces(t *testing.T) {
	s := begin(t)
	s.runtime()
	node := only(nodes[0])
	for _, class := range []string{directories, images, "xfs", "btrfs"} {
		t.Run(class, func(t *testing.T) {
			s := &scene{t, s.namespace}
			inside, outside, name := "inside-"+class, "outside-"+class, class
			s.apply(claim(name, class, "400Mi", ""), pod(inside, inUserNamespace+node, name))
			s.runs(inside)
			if shift := strings.Fields(s.in(inside, "cat /proc/self/uid_map")); len(shift) != 3 || shift[0] != "0" ||
				s.number(shift[1]) < 65536 {
				s.Errorf("the pod has the user IDs %q", shift)
			}
			s.must(contains(s.in(inside, "grep ' /"+name+" ' /proc/mounts"), "idmapped"))
			s.in(inside, fmt.Sprintf("cd /%s && echo inside >root && echo of 1000 >user && chown 1000:1000 user", name))
			s.same("in the pod", "0:2000 1000:1000", s.owners(inside, name, "root", "user"))

			s.apply(pod(outside, node, name))
			s.runs(outside)
			s.same("the owner for a pod without a user namespace", "0:2000 1000:1000", s.owners(outside, name, "root", "user"))
			s.same("the content", "inside", s.in(outside, "cat /"+name+"/root"))
			s.in(outside, fmt.Sprintf("cd /%s && echo outside >other && chown 1001:2000 other", name))
			s.same("the owner of the other pod's file", "1001:2000", s.owners(inside, name, "other"))
			s.in(inside, "rm /"+name+"/other")

			s.ends(inside)
			s.in(outside, fmt.Sprintf("chown 0:0 /%s/user", name))
			s.apply(pod(inside, inUserNamespace+node, name)) // with another range of user IDs
			s.runs(inside)
			s.same("after a restart", "0:2000 0:2000", s.owners(inside, name, "root", "user"))
		})
	}
}

// owners returns the user and group of files of a claim, in a pod.
func (s *scene) owners(pod, claim string, files ...string) string {
	s.Helper()
	return strings.Join(strings.Fields(s.in(pod, fmt.Sprintf("cd /%s && stat -c %%u:%%g %s", claim, strings.Join(files, " ")))), " ")
}

// runtime gives the nodes a runc with idmapped mounts, and makes its RuntimeClass.
func (s *scene) runtime() {
	s.Helper()
	tools := filepath.Join(chart.Sources(), "test", "cluster", "switches", "tools")
	bin, err := components.BuildTools(s.Context(), os.Stderr, tools, map[string]components.Tool{
		"runc": {Module: "runc", Package: "github.com/opencontainers/runc", Tags: "seccomp", CGO: true}})
	s.must(err)
	for _, n := range nodes {
		s.must(n.AddRuntime(s.Context(), handler, filepath.Join(bin, "runc")))
		// The kernel permits a /proc in a user namespace only beside one without mounts on its
		// files. The /proc of a local node has such mounts.
		s.on(n, "mountpoint -q /run/whole-proc || { mkdir -p /run/whole-proc && mount -t proc proc /run/whole-proc; }")
		await.NoError(s, n.Name+" has the runtime", func() error {
			return contains(s.value("node/"+n.Name, `{.status.runtimeHandlers[?(@.name=="`+handler+`")].features}`),
				`"userNamespaces":true`)
		})
	}
	s.apply("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: " + handler + "}\nhandler: " + handler + "\n")
}
