package live

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/test/cluster/install"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/local"
)

// fault is a fault, with the alerts that fire because of it, and end after its repair.
type fault struct {
	name          string
	alerts        []string
	lasting       []string // alerts that fire, and end hours later only
	cause, repair func(*prometheus)
}

const root = local.StorageDir

var faults = []fault{
	{name: "a directory that cannot be written",
		lasting: []string{"CausewayInternalErrors", "CausewayErrorBudgetBurnsFast"},
		cause: func(p *prometheus) {
			p.on(nodes[0], "chattr +i "+root+"/volumes")
			p.on(nodes[1], "chattr +i "+root+"/volumes")
			p.must(kube.Apply(p.anyhow(), strings.Join(failing(), "---\n")))
		},
		repair: func(p *prometheus) {
			p.on(nodes[0], "chattr -i "+root+"/volumes")
			p.on(nodes[1], "chattr -i "+root+"/volumes")
			p.must2(p.try("delete", "pvc", "-l", "of=failing"))
			p.must2(p.try("delete", "storageclass", "immediate"))
		}},
	{name: "a node without network", alerts: []string{"CausewayTargetDown", "CausewayNodesSilent"},
		cause:  func(p *prometheus) { p.must(nodes[1].Cut(p.anyhow())) },
		repair: func(p *prometheus) { p.must(nodes[1].Reconnect(p.anyhow())) }},
	{name: "a node without its data disk", alerts: []string{"CausewayNotReady"},
		cause:  func(p *prometheus) { p.restart(nodes[1], false) },
		repair: func(p *prometheus) { p.restart(nodes[1], true) }},
	{name: "an almost full disk", alerts: []string{"CausewayStorageAlmostFull", "CausewayStorageFull"},
		cause: func(p *prometheus) {
			p.on(nodes[0], "fallocate -l $(($(df --output=avail -B1 "+root+" | tail -n1) * 98 / 100)) "+root+"/filler")
		},
		repair: func(p *prometheus) { p.on(nodes[0], "rm -f "+root+"/filler") }},
	{name: "a deleted volume with an immutable file", alerts: []string{"CausewayStorageUnhealthy"},
		cause: func(p *prometheus) {
			p.volume("immutable")
			p.on(nodes[0], "chattr +i $(find "+root+"/volumes -name marker-immutable)")
			p.remove("immutable")
		},
		repair: func(p *prometheus) {
			p.on(nodes[0], "chattr -R -i "+root+"/trash "+root+"/volumes; true")
			p.replacePods(nodes[0])
		}},
	{name: "a torn record and missing data",
		alerts: []string{"CausewayUnreadableRecords", "CausewayVolumesUnhealthy"},
		cause: func(p *prometheus) {
			id := p.volume("torn")
			p.must2(p.try("delete", "pod", "torn", "--now"))
			p.on(nodes[0], "cd "+root+"/volumes/"+id+" && cp record.json /run/record.json && truncate -s 10 record.json")
			p.replacePods(nodes[0])
		},
		repair: func(p *prometheus) {
			p.on(nodes[0], "cd "+root+"/volumes/*/ && cp /run/record.json record.json")
			p.replacePods(nodes[0])
			p.remove("torn")
		}},
	{name: "no DNS", alerts: []string{"CausewayDiscoveryFails"},
		cause: func(p *prometheus) {
			p.must2(p.try("-n", "kube-system", "scale", "deployment/coredns", "--replicas=0"))
		},
		repair: func(p *prometheus) {
			p.must2(p.try("-n", "kube-system", "scale", "deployment/coredns", "--replicas=2"))
		}},
	{name: "no right to leases", alerts: []string{"CausewayNoLeader", "CausewaySidecarsNotReady"},
		cause: func(p *prometheus) {
			p.editRole(`"leases"`, `"no-leases"`)
			p.must2(p.try("-n", install.Namespace, "delete", "pod", "-l", "app.kubernetes.io/name=causeway-controller"))
		},
		repair: func(p *prometheus) { p.editRole(`"no-leases"`, `"leases"`) }},
	{name: "no controller", alerts: []string{"CausewayControllerMissing"},
		cause: func(p *prometheus) {
			p.must2(p.try("-n", install.Namespace, "scale", "deployment/causeway-controller", "--replicas=0"))
		},
		repair: func(p *prometheus) {
			p.must2(p.try("-n", install.Namespace, "scale", "deployment/causeway-controller", "--replicas=2"))
		}},
	{name: "certificates that expire", alerts: []string{"CausewayCertificateExpires", "CausewayCertificateExpired"},
		cause: func(p *prometheus) {
			p.must(upgrade(p.anyhow(), kube, "--set=hostpath.certificates.days=1,hostpath.certificates.generation=2"))
		},
		repair: func(p *prometheus) {
			p.must(upgrade(p.anyhow(), kube, "--set=hostpath.certificates.days=3650,hostpath.certificates.generation=3"))
		}},
}

// failing returns claims without a node, and their class.
func failing() []string {
	all := []string{`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: immediate}
provisioner: hostpath.csi.causeway.dev
parameters: {kind: directory}
volumeBindingMode: Immediate
`}
	for i := range 12 {
		all = append(all, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: failing-%d, labels: {of: failing}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: immediate
  resources: {requests: {storage: 1Mi}}
`, i))
	}
	return all
}

// TestAlerts causes faults, one after the other. A healthy cluster has no alert.
func TestAlerts(t *testing.T) {
	p := start(t)
	p.well()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Second) {
		if names, err := p.firing(); err != nil || len(names) > 0 {
			t.Fatalf("on a healthy cluster %v fires, %v", slices.Collect(maps.Keys(names)), err)
		}
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			p := &prometheus{t, p.Server}
			repaired := false
			defer func() {
				if !repaired {
					f.repair(p)
				}
			}()
			p.fires(false, append(slices.Clone(f.alerts), f.lasting...)...)
			f.cause(p)
			p.fires(true, append(slices.Clone(f.alerts), f.lasting...)...)
			f.repair(p)
			repaired = true
			p.fires(false, f.alerts...)
			p.well()
		})
	}
}

// well waits until all pods are ready and have metrics.
func (p *prometheus) well() {
	p.Helper()
	for _, w := range []string{"daemonset/causeway-node", "deployment/causeway-controller"} {
		livetest.Until(p.T, w+" to be ready", func() error {
			_, err := p.try("-n", install.Namespace, "rollout", "status", w, "--timeout=5s")
			return err
		})
	}
	livetest.Until(p.T, "metrics of all pods, and a leader", func() error {
		for expr, want := range map[string]string{"count(up == 1)": "8", "count(up)": "8", "count(causeway_ready == 1)": "2",
			`sum(csi_sidecars_controller_up{controller="provisioner"})`: "1",
			`max(causeway_router_peers{state="answers"})`:               "2", "count(csi_sidecars_ready == 1)": "4"} {
			got, err := p.Query(expr)
			if err == nil && (len(got) != 1 || got[0].Value[1] != want) {
				err = fmt.Errorf("%s is %v, want %s", expr, got, want)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// volume makes a claim on the first node, whose pod writes a file, and returns the ID of the volume.
func (p *prometheus) volume(name string) (id string) {
	p.Helper()
	p.must(kube.Apply(p.anyhow(), fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: causeway-hostpath
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  containers:
  - name: writer
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, "echo data > /data/marker-%[1]s && sleep 3600"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: %[1]s}}
`, name, nodes[0].Name)))
	livetest.Until(p.T, "pod "+name+" to be ready", func() error {
		_, err := p.try("wait", "pod/"+name, "--for=condition=Ready", "--timeout=5s")
		return err
	})
	volume := p.must2(p.try("get", "pvc", name, "-o", "jsonpath={.spec.volumeName}"))
	return p.must2(p.try("get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}"))
}

// remove deletes the pod and the claim of volume.
func (p *prometheus) remove(name string) {
	p.Helper()
	p.must2(p.try("delete", "pod", name, "--now", "--ignore-not-found"))
	p.must2(p.try("delete", "pvc", name))
}

// editRole replaces a text in the role of the controller.
func (p *prometheus) editRole(from, to string) {
	p.Helper()
	role := p.must2(p.try("-n", install.Namespace, "get", "role", "causeway", "-o", "json"))
	p.must(kube.Apply(p.anyhow(), strings.Replace(role, from, to, 1), "--server-side", "--force-conflicts"))
}

// restart turns a node off and on.
func (p *prometheus) restart(n local.Node, withDisk bool) {
	p.Helper()
	p.must(n.PowerOff(p.anyhow()))
	p.must(n.PowerOn(p.anyhow(), withDisk))
}

// replacePods replaces the driver's pod of a node.
func (p *prometheus) replacePods(n local.Node) {
	p.Helper()
	p.must2(p.try("-n", install.Namespace, "delete", "pod", "-l", "app.kubernetes.io/name=causeway-node",
		"--field-selector=spec.nodeName="+n.Name))
}

// on runs a shell command on a node.
func (p *prometheus) on(n local.Node, line string) {
	p.Helper()
	p.must2(n.Run(p.anyhow(), "sh", "-c", line))
}

// anyhow is a context for steps that must run even after the end of the test.
func (p *prometheus) anyhow() context.Context { return context.WithoutCancel(p.Context()) }

func (p *prometheus) try(args ...string) (string, error) {
	out, err := kube.Run(p.anyhow(), append([]string{"--request-timeout=60s"}, args...)...)
	return strings.TrimSpace(out), err
}

func (p *prometheus) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *prometheus) must2(out string, err error) string {
	p.Helper()
	p.must(err)
	return out
}
