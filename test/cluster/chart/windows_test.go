package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// windowsPods returns the DaemonSets for Windows nodes that values make, by their templates.
func windowsPods(t *testing.T, values string) map[string]core.PodSpec {
	t.Helper()
	objects, err := renderWith(t, programs(t), values)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]core.PodSpec{}
	for _, o := range objects {
		if !strings.HasSuffix(o.Source, "/node-windows.yaml") {
			continue
		}
		var set apps.DaemonSet
		if err := yaml.UnmarshalStrict([]byte(o.Text), &set); err != nil {
			t.Fatal(err)
		}
		found[o.Source] = set.Spec.Template.Spec
	}
	return found
}

// TestPortsOfWindowsNodes: the pods of both drivers are on the network of the node. Each port is
// declared, so that the scheduler knows it, and belongs to one container of the chart. The port
// of livenessprobe is on 127.0.0.1, and all probes go there.
func TestPortsOfWindowsNodes(t *testing.T) {
	pods := windowsPods(t, "{hostpath: {windows: {enabled: true}}, smb: {enabled: true, windows: {enabled: true}}}")
	if len(pods) != 2 {
		t.Fatalf("got %d DaemonSets, want 2", len(pods))
	}
	owner := map[int32]string{}
	for source, spec := range pods {
		if !spec.HostNetwork {
			t.Errorf("%s: not on the network of the node", source)
		}
		local := map[int32]bool{}
		for _, c := range spec.Containers {
			for _, p := range c.Ports {
				if p.HostPort != p.ContainerPort || owner[p.HostPort] != "" {
					t.Errorf("%s, %s: port %d has the host port %d, which %q has", source, c.Name, p.ContainerPort,
						p.HostPort, owner[p.HostPort])
				}
				owner[p.HostPort] = source + " " + p.Name
				local[p.HostPort] = p.HostIP == "127.0.0.1"
			}
		}
		for _, c := range spec.Containers {
			for _, p := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe} {
				if p != nil && p.HTTPGet.Host != "127.0.0.1" {
					t.Errorf("%s, %s: a probe goes to the host %q", source, c.Name, p.HTTPGet.Host)
				}
			}
			for _, arg := range c.Args {
				if port, ok := strings.CutPrefix(arg, "--livenessprobe-health-port="); ok {
					var n int32
					if _, err := fmt.Sscanf(port, "127.0.0.1:%d", &n); err != nil || !local[n] {
						t.Errorf("%s: livenessprobe listens on %s: %v", source, port, err)
					}
				}
			}
		}
	}
	if owner[9810] != "hostpath/node-windows.yaml peer" {
		t.Errorf("port 9810 belongs to %q", owner[9810])
	}
}

// TestPathsOfWindowsNodes: the kubelet gets the path of a socket, not a URL.
func TestPathsOfWindowsNodes(t *testing.T) {
	spec := windowsPods(t, `{kubeletDirWindows: 'D:\k', hostpath: {windows: {enabled: true}}}`)["hostpath/node-windows.yaml"]
	args := map[string][]string{}
	for _, c := range spec.Containers {
		args[c.Name] = c.Args
	}
	socket := `D:\k\plugins\hostpath.csi.causeway.dev\csi.sock`
	for container, wanted := range map[string][]string{
		"driver": {"--endpoint=unix://" + socket, `--kubelet-dir=D:\k`},
		"csi-sidecars-node": {"--csi-address=unix://" + socket,
			"--node-driver-registrar-kubelet-registration-path=" + socket,
			`--node-driver-registrar-plugin-registration-path=D:\k\plugins_registry`},
	} {
		for _, want := range wanted {
			if !slices.Contains(args[container], want) {
				t.Errorf("%s has no %s: %q", container, want, args[container])
			}
		}
	}
}

// TestAccountsOnWindows: with a group, the driver has its account, and csi-sidecars-node is SYSTEM.
func TestAccountsOnWindows(t *testing.T) {
	for account, want := range map[string]string{`NT AUTHORITY\SYSTEM`: "", "group": `NT AUTHORITY\SYSTEM`} {
		spec := windowsPods(t,
			"hostpath: {windows: {enabled: true, runAsUserName: '"+account+"'}}")["hostpath/node-windows.yaml"]
		if o := spec.SecurityContext.WindowsOptions; !*o.HostProcess || *o.RunAsUserName != account {
			t.Errorf("%s: the pod has %v", account, o)
		}
		for _, c := range spec.Containers {
			got := ""
			if c.SecurityContext != nil {
				got = *c.SecurityContext.WindowsOptions.RunAsUserName
			}
			if wanted := map[string]string{"csi-sidecars-node": want}[c.Name]; got != wanted {
				t.Errorf("%s: the account of %s is %q, want %q", account, c.Name, got, wanted)
			}
		}
	}
}

// TestFlagsOfWindowsNodes: they reach no Linux node, where --windows-image-clone is an error.
func TestFlagsOfWindowsNodes(t *testing.T) {
	objects, err := renderWith(t, programs(t),
		"hostpath: {extraArgs: [--drain-timeout=7s], windows: {enabled: true, extraArgs: [--windows-image-clone]}}")
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, o := range objects {
		if strings.Contains(o.Text, "--windows-image-clone") {
			has = append(has, o.Source)
		}
	}
	if !slices.Equal(has, []string{"hostpath/node-windows.yaml"}) {
		t.Errorf("--windows-image-clone is in %q", has)
	}
	pods := windowsPods(t, attachedWith("", ", extraArgs: [--drain-timeout=7s], windows: {enabled: true, extraArgs: [--a=c]}"))
	args := pods["hostpath/node-windows.yaml"].Containers[0].Args
	if want := []string{"--drain-timeout=7s", "--a", "--a=c"}; !slices.Equal(args[len(args)-3:], want) {
		t.Errorf("the last flags are %q, want %q: the last value of a flag counts", args, want)
	}
}

// TestAttachedDisksOnWindows: no router calls such a node.
func TestAttachedDisksOnWindows(t *testing.T) {
	spec := windowsPods(t, attachedWith("", ", windows: {enabled: true}"))["hostpath/node-windows.yaml"]
	if len(spec.Volumes) != 0 {
		t.Errorf("the pod has the volumes %v", spec.Volumes)
	}
	driver := spec.Containers[0]
	if strings.Contains(strings.Join(driver.Args, " "), "--peer-") || !slices.Contains(driver.Args, "--a") {
		t.Errorf("the driver has the flags %q", driver.Args)
	}
	for _, p := range driver.Ports {
		if p.Name == "peer" {
			t.Error("the driver has a port for a router")
		}
	}
}

// TestImageClassesHaveTheirFilesystem: a node knows by this key alone that it cannot have an image
// of the other system.
func TestImageClassesHaveTheirFilesystem(t *testing.T) {
	objects, err := renderWith(t, programs(t), "hostpath: {windows: {enabled: true}, storageClasses: {a: {kind: image}, "+
		"b: {kind: image, fsType: ntfs}, c: {kind: image, parameters: {label: x}}}}")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range objects {
		var class struct {
			Kind       string
			Metadata   struct{ Name string }
			Parameters map[string]string
		}
		if err := yaml.Unmarshal([]byte(o.Text), &class); err != nil {
			t.Fatal(err)
		}
		if class.Kind == "StorageClass" {
			got[class.Metadata.Name] = class.Parameters["kind"] + " " + class.Parameters["csi.storage.k8s.io/fstype"]
		}
	}
	want := map[string]string{"a": "image ext4", "b": "image ntfs", "c": "image ext4", "causeway-hostpath": "directory ",
		"causeway-hostpath-image": "image ext4"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestHelmTestIsForLinux: the pods of helm test cannot use a volume of a Windows node.
func TestHelmTestIsForLinux(t *testing.T) {
	objects, err := renderWith(t, programs(t), `{hostpath: {windows: {enabled: true}, storageClasses: {
  a: {kind: image, fsType: ntfs},
  b: {kind: directory, allowedTopologies: [{matchLabelExpressions: [{key: hostpath.csi.causeway.dev/os, values: [windows]}]}]},
  c: {kind: directory, allowedTopologies: [{matchLabelExpressions: [{key: kubernetes.io/os, values: [windows]}]}]},
  d: {kind: directory, allowedTopologies: [{matchLabelExpressions: [{key: hostpath.csi.causeway.dev/os, values: [linux]}]}]}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, o := range objects {
		if o.Source != "tests/volumes.yaml" {
			continue
		}
		for _, class := range []string{"a", "b", "c", "d"} {
			if strings.Contains(o.Text, "storageClassName: "+class+"\n") {
				tested[class] = true
			}
		}
	}
	if len(tested) != 1 || !tested["d"] {
		t.Errorf("helm test tests %v, want d alone", tested)
	}
}

// TestNotesNameTheFirewall: without the rule the router calls no Windows node.
func TestNotesNameTheFirewall(t *testing.T) {
	const rule = "New-NetFirewallRule"
	for values, want := range map[string]bool{
		"hostpath.windows.enabled=true":  true,
		"hostpath.windows.enabled=false": false,
		"hostpath.windows.enabled=true,hostpath.csiDriver.attachRequired=true,hostpath.backendArgs={--a}": false,
	} {
		out, err := Helm(t.Context(), programs(t), "install", "causeway", Directory(), "--dry-run=client",
			"--namespace=causeway", "--set="+values)
		if err != nil {
			t.Fatal(err)
		}
		_, notes, found := strings.Cut(out, "NOTES:")
		if !found || strings.Contains(notes, rule) != want {
			t.Errorf("%s: want %s: %v, in\n%s", values, rule, want, notes)
		}
	}
}
