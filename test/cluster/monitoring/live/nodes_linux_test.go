package live

import (
	"fmt"
	"strings"

	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/test/cluster/install"
)

// nodeSteps are faults of nodes and of calls.
func nodeSteps() []step {
	away := want{"nodes", "Node/node-2", "the node is away", "bring the node back", "docs/how-to/node-failures.md"}
	effects := []want{restarting, {check: "router", cause: "cannot look up the addresses"}} // the pod of DNS may be there
	return []step{
		{name: "a node away", begin: (*scene).retriesLater, faults: []fault{
			{name: "a node without network",
				alerts: []string{"CausewayTargetDown", "CausewayNodesSilent", "CausewayHealthNotChecked"},
				named:  []want{away, {"router", "Pod/causeway-controller-", "does not reach a node", "bring the node back", pageRouter}},
				also:   effects,
				cause: func(s *scene) {
					s.use(volumeOf{name: "there", node: &nodes[1], without: true})
					s.later(func() { s.must(nodes[1].Reconnect(s.anyhow())) })
					s.must(nodes[1].Cut(s.anyhow()))
				}},
			{name: "a volume on a node without network",
				rows: []string{"A volume or a snapshot is not deleted: UNAVAILABLE, `does not answer`; or `none of the N nodes holds it`",
					"Errors of the router: `node … does not answer: …`"},
				named: []want{{"deletes", "PersistentVolume/pvc-", "a node that the call needs is away", "forgottenNodes", pageRouter}},
				cause: func(s *scene) { s.kubectl("delete", "pvc", "there", "--wait=false") }},
			{name: "a claim for a node without network", rows: []string{"Errors of the router: `no node answers in …`"},
				named: []want{{"claims", "PersistentVolumeClaim/default/there-too", "a node that the call needs is away",
					"bring the node back", pageRouter}},
				cause: func(s *scene) {
					s.claimOf(class("there-too", driverName, "Immediate", "kind: directory", only(nodes[1].Name)), "there-too", "1Mi")
				}},
		}},
		{name: "a node without kubelet", faults: []fault{
			{name: "no kubelet", named: []want{away}, also: effects,
				cause: func(s *scene) {
					s.later(func() { s.must(nodes[1].Release("kubelet")) })
					s.must(nodes[1].Hold("kubelet"))
				}},
		}},
		{name: "a node that is gone", begin: (*scene).retriesLater, faults: []fault{
			{name: "a dead node",
				named: []want{
					{"forgotten-volumes", "Node/node-2", "PersistentVolumes are on a node that is not in the cluster",
						"hostpath.forgottenNodes", "docs/how-to/replace-a-node.md"},
					// The cause changes when DNS forgets the address of the node.
					{"deletes", "PersistentVolume/pvc-", "the volume cannot be deleted", "forgottenNodes", pageRouter}},
				also: append(effects, want{check: "nodes", object: "Node/node-2"}, want{check: "registration", object: "Node/node-2"}),
				cause: func(s *scene) {
					s.use(volumeOf{name: "lost", node: &nodes[1], without: true})
					s.later(func() {
						s.must(nodes[1].PowerOn(s.anyhow(), true))
						await.NoError(s, "the node is back", func() error {
							_, err := s.try("wait", "node/"+nodes[1].Name, "--for=condition=Ready", "--timeout=10s")
							return err
						})
					})
					s.must(nodes[1].PowerOff(s.anyhow()))
					s.kubectl("delete", "node", nodes[1].Name)
					for _, in := range []string{install.Namespace, "kube-system"} {
						s.kubectl("-n", in, "delete", "pods", "--field-selector=spec.nodeName="+nodes[1].Name, "--force", "--grace-period=0")
					}
					s.kubectl("delete", "pvc", "lost", "--wait=false")
				}},
		}},
		{name: "calls", faults: []fault{
			{name: "slow mounts", lasting: []string{"CausewayMountsSlow"},
				also: []want{{check: "driver-ready", object: "on node-1"}, {check: "sidecars-ready", object: "on node-1"},
					{check: "pods-with-volumes", object: "Pod/default/inline"}},
				cause: func(s *scene) {
					s.use(volumeOf{name: "first"}) // a rate needs a counter that exists, and grows
					s.scraped()
					s.scraped()
					s.later(func() { s.kubectl("delete", "pod", "inline", "--now") })
					s.later(func() { s.on(nodes[0], "pkill -CONT -f '^/usr/bin/driver --mode=node'; true") })
					s.keep(nodes[0], "sh", "-c", "p=$(pgrep -f '^/usr/bin/driver --mode=node'); for i in $(seq 60); do kill -STOP $p; sleep 1.5; kill -CONT $p; sleep 0.03; done")
					var mounts, volumes []string
					for i := range 30 {
						mounts = append(mounts, fmt.Sprintf("{name: v%[1]d, mountPath: /v%[1]d}", i))
						volumes = append(volumes, fmt.Sprintf("{name: v%d, csi: {driver: %s, volumeAttributes: {size: 1Mi}}}", i, driverName))
					}
					object := pod("inline", nodes[0].Name)
					object = strings.Replace(object, "volumeMounts: []", "volumeMounts: ["+strings.Join(mounts, ", ")+"]", 1)
					s.apply(strings.Replace(object, "volumes: []", "volumes: ["+strings.Join(volumes, ", ")+"]", 1))
				}},
			{name: "a flood of connections", lasting: []string{"CausewayConnectionFlood"},
				cause: func(s *scene) {
					s.keep(nodes[0], "python3", "-c", "import socket,resource,time; "+
						"resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)); "+
						"all = [socket.create_connection(('"+s.address(nodes[1].Name)+"', 9810)) for _ in range(2500)]; time.sleep(3600)")
				}},
		}},
		{name: "a queue", faults: []fault{
			{name: "a driver that hangs", alerts: []string{"CausewayQueueGrows"},
				also: []want{{check: "driver-ready"}, {check: "sidecars-ready"}, {check: "leaders"}, {check: "pods"}, {check: "claims"}},
				cause: func(s *scene) {
					all := []string{class("queue", driverName, "Immediate", "kind: directory")}
					for i := range 300 { // 100 workers take one each
						all = append(all, strings.Replace(claim(fmt.Sprintf("queue-%d", i), "queue", "1Mi"), "{name:", "{labels: {of: queue}, name:", 1))
					}
					s.later(func() {
						s.kubectl("delete", "pvc", "-l", "of=queue", "--wait=false")
						s.kubectl("delete", "storageclass", "queue")
					})
					for _, n := range nodes {
						stop := "pkill -%s -f '^/usr/bin/driver --mode=controller'"
						s.later(func() { s.on(n, fmt.Sprintf(stop, "CONT")+"; true") })
						s.on(n, fmt.Sprintf(stop, "STOP"))
					}
					s.apply(all...)
				}},
		}},
		{name: "failing calls", faults: []fault{
			{name: "a directory that cannot be written",
				lasting: []string{"CausewayInternalErrors", "CausewayErrorBudgetBurnsFast", "CausewayErrorBudgetBurnsSlowly"},
				rows:    []string{"Errors of any call: INTERNAL, any other text"},
				named: []want{{"claims", "PersistentVolumeClaim/default/failing-", "the driver cannot serve the call now",
					"log of the driver", pageTrouble + "#errors-of-any-call"}},
				cause: func(s *scene) {
					all := []string{class("immediate", driverName, "Immediate", "kind: directory")}
					for i := range 12 {
						all = append(all, strings.Replace(claim(fmt.Sprintf("failing-%d", i), "immediate", "1Mi"), "{name:", "{labels: {of: failing}, name:", 1))
					}
					s.later(func() {
						s.kubectl("delete", "pvc", "-l", "of=failing")
						s.kubectl("delete", "storageclass", "immediate")
					})
					for _, n := range nodes {
						s.later(func() { s.on(n, "chattr -i "+root+"/volumes") })
						s.on(n, "chattr +i "+root+"/volumes")
					}
					s.apply(all...)
				}},
		}},
	}
}
