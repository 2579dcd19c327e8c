package chart

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// programs is where Helm is.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := Programs(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func configurations(t *testing.T) []Configuration {
	t.Helper()
	all, err := Configurations()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFilesAreRendered compares the files that are made from the chart with the output of make
// chart: deploy, the README, and the objects of each configuration.
func TestFilesAreRendered(t *testing.T) {
	files, err := Files(t.Context(), programs(t))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		have, err := os.ReadFile(filepath.Join(Sources(), path))
		if err != nil || string(have) != want {
			t.Errorf("%s, %v, is not what the chart makes: run make chart, and look at what changes", path, err)
		}
	}
	old, err := filepath.Glob(filepath.Join("testdata", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if files[filepath.Join("test/cluster/chart", path)] == "" {
			t.Errorf("%s is of no configuration", path)
		}
	}
}

// TestTheAuthorsValues: the pages for authors of drivers, and that for Windows nodes, show the
// values of these tests.
func TestTheAuthorsValues(t *testing.T) {
	for page, configuration := range map[string]string{"tutorials/write-your-own-driver.md": "own-driver",
		"how-to/attached-disks.md": "attached", "how-to/windows.md": "windows"} {
		text, err := os.ReadFile(filepath.Join(Sources(), "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		values, err := os.ReadFile(filepath.Join(Directory(), "ci", configuration+"-values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if _, shown, _ := strings.Cut(string(values), "\n"); !strings.Contains(string(text),
			"```yaml\n"+shown+"```\n") {
			t.Errorf("docs/%s does not show\n%s", page, values)
		}
	}
}

// attachedWith returns values of an attached driver, with more for its controller.
func attachedWith(controller, more string) string {
	return "{hostpath: {backendArgs: [--a], csiDriver: {attachRequired: true}, controller: {" + controller + "}" + more + "}}"
}

func TestLint(t *testing.T) {
	bin := programs(t)
	for _, c := range configurations(t) {
		t.Run(c.Name, func(t *testing.T) {
			if out, err := Helm(t.Context(), bin,
				append([]string{"lint", "--strict", Directory()}, c.Args...)...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// renderWith renders the chart with a file of values.
func renderWith(t *testing.T, bin, values string) ([]Object, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, []byte(values), 0o644); err != nil {
		t.Fatal(err)
	}
	return Render(t.Context(), bin, "--values="+path)
}

// TestRejectedValues: values that are wrong are refused with words, before anything is made.
func TestRejectedValues(t *testing.T) {
	bin := programs(t)
	for name, tc := range map[string]struct{ values, want string }{
		"a typo": {"hostpth: {enabled: true}",
			"additional properties 'hostpth' not allowed"},
		"a typo further in": {"hostpath: {controller: {replica: 3}}",
			"additional properties 'replica' not allowed"},
		"shares of a limited account": {"smb: {enabled: true, windows: {enabled: true, runAsUserName: group}}",
			"smb.windows.runAsUserName: group cannot map shares"},
		"a share without credentials": {"smb: {shares: {x: {source: //a/b}}}", "/smb/shares/x"},
		"a share with both":           {"smb: {shares: {x: {source: //a/b, guest: true, secretName: c}}}", "/smb/shares/x"},
		"a source without a share":    {"smb: {shares: {x: {source: //a, guest: true}}}", "/smb/shares/x/source"},
		"a source that is too long": {"smb: {shares: {x: {source: //a/" + strings.Repeat("b", 70) + ", guest: true}}}",
			"/smb/shares/x/source"},
		"a share whose name has a dot":        {"smb: {shares: {a.b: {source: //a/b, guest: true}}}", "invalid propertyName 'a.b'"},
		"a share whose name ends with a dash": {"smb: {shares: {a-: {source: //a/b, guest: true}}}", "invalid propertyName 'a-'"},
		"a share whose name is too long for a volume of a pod": {"smb: {shares: {" + strings.Repeat("a", 58) +
			": {source: //a/b, guest: true}}}", "invalid propertyName"},
		"a class without credentials": {"smb: {storageClasses: {x: {source: //a/b}}}", "/smb/storageClasses/x"},
		"an unknown parameter of shares": {
			"smb: {storageClasses: {x: {source: //a/b, guest: true, parameters: {subdir: x}}}}", "/smb/storageClasses/x"},
		"images of a limited account": {"hostpath: {windows: {enabled: true, runAsUserName: group}, " +
			"storageClasses: {x: {kind: image, fsType: ntfs}}}", "group cannot have images, and the class x has them"},
		"attached disks of a limited account": {attachedWith("", ", windows: {enabled: true, runAsUserName: group}"),
			"group cannot have attached disks"},
		"certificates of each node with Windows nodes": {"hostpath: {windows: {enabled: true}, " +
			"certificates: {source: secrets, nodesDirectory: /etc/certs}}", "all nodes share a secret"},
		"a root on Windows that is a path of Linux": {"hostpath: {windows: {root: /var/lib/causeway}}",
			"/hostpath/windows/root"},
		"a filesystem that no system has": {"hostpath: {storageClasses: {x: {kind: image, fsType: refs}}}",
			"/hostpath/storageClasses/x"},
		"a mount option of Linux for ntfs": {"hostpath: {storageClasses: {x: {kind: image, fsType: ntfs, " +
			"mountOptions: [noatime]}}}", "/hostpath/storageClasses/x"},
		"a parameter of Linux for ntfs": {"hostpath: {storageClasses: {x: {kind: image, fsType: ntfs, " +
			"parameters: {readahead: 1Mi}}}}", "/hostpath/storageClasses/x"},
		"another kind": {"hostpath: {storageClasses: {x: {kind: file}}}",
			"/hostpath/storageClasses/x"},
		"no kind": {"hostpath: {storageClasses: {x: {fsType: ext4}}}",
			"missing property 'kind'"},
		"a filesystem for directories": {"hostpath: {storageClasses: {x: {kind: directory, fsType: ext4}}}",
			"/hostpath/storageClasses/x"},
		"a parameter that is not there": {"hostpath: {storageClasses: {x: {kind: image, parameters: {size: " +
			"1Gi}}}}", "'size' not allowed"},
		"no replicas": {"hostpath: {controller: {replicas: 0}}",
			"/hostpath/controller/replicas"},
		"a relative root":                {"hostpath: {root: var/lib}", "/hostpath/root"},
		"a root with a slash at its end": {"hostpath: {root: /mnt/}", "/hostpath/root"},
		"a name that is none":            {"hostpath: {driverName: Hostpath_CSI}", "/hostpath/driverName"},
		"a name that is too long": {"hostpath: {driverName: " + strings.Repeat("a", 64) + "}",
			"/hostpath/driverName"},
		"a digest that is none":      {"images: {driver: {digest: latest}}", "/images/driver/digest"},
		"a pull policy that is none": {"images: {pullPolicy: Sometimes}", "/images/pullPolicy"},
		"no time": {"hostpath: {controller: {timeout: 60}}",
			"/hostpath/controller/timeout"},
		"no capacity": {"hostpath: {controller: {capacity: {qps: 0}}}",
			"/hostpath/controller/capacity/qps"},
		"trims without a unit":   {"hostpath: {trimInterval: \"168\"}", "/hostpath/trimInterval"},
		"trims without a pause":  {"hostpath: {trimInterval: 10s}", "hostpath.trimInterval: 10s is too short: the minimum is one minute"},
		"blocks of no size":      {"hostpath: {metadataBlockSize: 1000}", "/hostpath/metadataBlockSize"},
		"a forgotten node twice": {"hostpath: {forgottenNodes: [a, a]}", "/hostpath/forgottenNodes"},
		"a flag that the chart sets": {"hostpath: {controller: {extraArgs: [--controllers=attacher]}}",
			"/hostpath/controller/extraArgs/0"},
		"the kinds in another place":            {"hostpath: {extraArgs: [--kinds=directory]}", "/hostpath/extraArgs/0"},
		"a driver's flag that the chart sets":   {"hostpath: {extraArgs: [--root=/x]}", "/hostpath/extraArgs/0"},
		"a flag of Windows that the chart sets": {"hostpath: {windows: {extraArgs: [--root=/x]}}", "/hostpath/windows/extraArgs/0"},
		"a backend's flag that the chart sets":  {"hostpath: {backendArgs: [--mode=all]}", "/hostpath/backendArgs/0"},
		"a trait that is neither": {"hostpath: {csiDriver: {storageCapacity: maybe}}",
			"/hostpath/csiDriver/storageCapacity"},
		"a state that nobody remembers": {"hostpath: {extraArgs: [--state-dir=/x]}", "/hostpath/extraArgs/0"},
		"clones on other nodes": {"hostpath: {controller: {extraArgs: [--provisioner-strict-topology]}}",
			"/hostpath/controller/extraArgs/0"},
		"volumes of other names": {"hostpath: {controller: {extraArgs: " +
			"[--provisioner-volume-name-uuid-length=8]}}", "/hostpath/controller/extraArgs/0"},
		"a directory's readahead": {"hostpath: {storageClasses: {x: {kind: directory, parameters: " +
			"{readahead: 1Mi}}}}", "/hostpath/storageClasses/x"},
		"an image without a size": {`hostpath: {storageClasses: {x: {kind: image, parameters: {enforce: "off"}}}}`, "/hostpath/storageClasses/x"},
		"a readahead that is none": {"hostpath: {volumeAttributesClasses: {x: {readahead: much}}}",
			"/hostpath/volumeAttributesClasses/x"},
		"no time at all": {"hostpath: {controller: {timeout: 0m0s}}",
			"/hostpath/controller/timeout"},
		"a test of nothing": {"tests: {size: 500m}", "/tests/size"},
		"an issuer who is not asked": {"hostpath: {certificates: {issuerRef: {name: x}}}",
			"issuerRef requires source: cert-manager"},
		"a mount option that is misspelled": {"hostpath: {storageClasses: {x: {kind: image, mountOptions: " +
			"[noatim]}}}", "/hostpath/storageClasses/x"},
		"a registry with a scheme": {"images: {registry: \"https://registry.example\"}",
			"/images/registry"},
		"a tag with a space":                {"images: {tag: \"dev \"}", "/images/tag"},
		"a root in the kubelet's directory": {"hostpath: {root: /var/lib/kubelet/volumes}", "one directory contains the other"},
		"a root in the kubelet's directory on Windows": {
			`hostpath: {windows: {enabled: true, root: 'C:\VAR\lib\kubelet\x'}}`,
			"hostpath.windows.root and kubeletDirWindows: one directory contains the other"},
		"a root around the kubelet's": {"hostpath: {root: /var/lib}", "one directory contains the other"},
		"two defaults": {"hostpath: {storageClasses: {x: {kind: image, default: true}, z: " +
			"{kind: directory, default: true}}}", "x, z are the default"},
		"a name that YAML takes for a number": {"hostpath: {driverName: \"1e3\"}", "/hostpath/driverName"},
		"a gate without which it does not run": {"hostpath: {controller: {extraArgs: " +
			"[\"--feature-gates=AnnotateFsResize=true,Topology=false\"]}}", "/hostpath/controller/extraArgs/0"},
		"a client without its certificates": {"hostpath: {extraArgs: [--peer-client=mine]}",
			"requires certificates.source: secrets"},
		"a name that YAML takes for another": {"hostpath: {driverName: \"off\"}", "/hostpath/driverName"},
		"a value that is taken away":         {"hostpath: {node: {resources: null}}", "missing property 'resources'"},
		"half of the values taken away":      {"hostpath: null", "missing property 'hostpath'"},
		"an issuer without a name": {"hostpath: {certificates: {source: cert-manager, issuerRef: {kind: " +
			"ClusterIssuer}}}", "/hostpath/certificates/issuerRef"},
		"one secret for both sides": {"hostpath: {certificates: {source: secrets, routerSecret: x, " +
			"nodesSecret: x}}", "must have different keys"},
		"a label that is the chart's": {"commonLabels: {app.kubernetes.io/part-of: x}",
			"invalid propertyName 'app.kubernetes.io/part-of'"},
		"a comma in a path": {"hostpath: {root: \"/mnt/a,b\"}", "/hostpath/root"},
		"traces that cannot leave": {"{env: {OTEL_EXPORTER_OTLP_ENDPOINT: x}, networkPolicy: {enabled: " +
			"true}}", "set networkPolicy.nodeEgress"},
		"a flag that is none": {"hostpath: {controller: {extraArgs: [strict-topology]}}",
			"/hostpath/controller/extraArgs/0"},
		"environment that is taken": {"env: {NODE_NAME: x}", "NODE_NAME"},
		"a quantity that is none":   {"admission: {inline: {maxSize: 10GB}}", "/admission/inline/maxSize"},
		"a monitor that is none":    {"monitoring: {kind: Prometheus}", "/monitoring/kind"},
		"the release's own namespace": {"namespace: {create: true}",
			"Helm needs the release's namespace before it can make any object"},
		"two drivers of one name": {"hostpath: {driverName: smb.csi.causeway.dev}",
			"two drivers need two names"},
		"a directory that nobody fills": {"hostpath: {certificates: {nodesDirectory: /etc/certs}}",
			"requires source: secrets"},
		"disks of hostpath that are attached": {"hostpath: {csiDriver: {attachRequired: true}}",
			"hostpath has no disks to attach"},
		"attachRequired that is a word": {`hostpath: {backendArgs: [--a], csiDriver: {attachRequired: ""}}`,
			"/hostpath/csiDriver/attachRequired"},
		"a router with privileges": {"hostpath: {backendArgs: [--a], controller: {privileged: true}}",
			"a router needs no storage"},
		"a router with flags of a backend": {"hostpath: {backendArgs: [--a], controller: {backendArgs: [--b]}}",
			"a router has no backend"},
		"a router with credentials": {"hostpath: {controller: {secretName: a}}", "a router has no backend"},
		"a flag of the kit for a controller": {attachedWith("backendArgs: [--mode=node]", ""),
			"/hostpath/controller/backendArgs"},
		"two clouds": {attachedWith("privileged: true, nodeSelector: {a: b}", ""),
			"Set hostpath.controller.replicas to 1"},
		"a cloud on any node": {attachedWith("privileged: true, replicas: 1", ""),
			"Set hostpath.controller.nodeSelector"},
		"a forgotten node without a router": {attachedWith("", ", forgottenNodes: [a]"), "only a router reads it"},
		"a field that Kubernetes does not have": {"hostpath: {csiDriver: {preventPodSchedulingIfMissing: maybe}}",
			"/hostpath/csiDriver/preventPodSchedulingIfMissing"},
		"labels of directories": {"hostpath: {csiDriver: {seLinuxMount: true}}", "Set hostpath.kinds to [image]"},
		"a class of a kind that is not made": {"hostpath: {kinds: [image]}",
			"the class causeway-hostpath is for volumes of kind directory"},
		"no kinds":        {"hostpath: {kinds: []}", "/hostpath/kinds"},
		"a kind twice":    {"hostpath: {kinds: [image, image]}", "/hostpath/kinds"},
		"an unknown kind": {"hostpath: {kinds: [image, share]}", "/hostpath/kinds"},
		"a snapshot controller without a pod": {"{hostpath: {enabled: false}, snapshotController: {enabled: true}}",
			"hostpath's controller, which is disabled"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := renderWith(t, bin, tc.values); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestTrimIntervals: the chart accepts the intervals that the driver accepts.
func TestTrimIntervals(t *testing.T) {
	bin := programs(t)
	for interval, ok := range map[string]bool{"0s": true, "0h0m": true, "1m": true, "60s": true, "0h0m60s": true, "59s1s": true,
		"0h1m": true, "010m": true, "168h": true, "1s": false, "59s": false, "0m59s": false, "08s": false, "30s29s": false} {
		_, err := renderWith(t, bin, "hostpath: {trimInterval: "+interval+"}")
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "hostpath.trimInterval: "+interval) {
			t.Errorf("%s: %v", interval, err)
		}
		if d, err := time.ParseDuration(interval); err != nil || (d == 0 || d >= time.Minute) != ok {
			t.Errorf("%s: the driver has %s, %v", interval, d, err)
		}
	}
	for _, values := range []string{"{enabled: false, trimInterval: 1s}", "{backendArgs: [--a], trimInterval: 1s}"} {
		if _, err := renderWith(t, bin, "hostpath: "+values); err != nil {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestFieldsOfTheCSIDriver: the chart sets a field only on request, and refuses it where the API
// server does not know it.
func TestFieldsOfTheCSIDriver(t *testing.T) {
	bin := programs(t)
	const field = "preventPodSchedulingIfMissing: true"
	for version, fails := range map[string]bool{"v1.31.0": true, "v1.35.9": true, "v1.36.0-alpha.1": false, "v1.38.0": false} {
		for _, driver := range []string{"hostpath", "smb"} {
			args := []string{"--kube-version=" + version, "--set=smb.enabled=true"}
			if set := csiDriver(t, bin, driver, args...); strings.Contains(set, field) {
				t.Errorf("%s, %s: it is set without a value", version, driver)
			}
			args = append(args, "--set="+driver+".csiDriver.preventPodSchedulingIfMissing=true")
			if _, err := Render(t.Context(), bin, args...); fails != (err != nil) || fails && !strings.Contains(err.Error(),
				driver+".csiDriver.preventPodSchedulingIfMissing: Kubernetes "+version) {
				t.Errorf("%s, %s: %v", version, driver, err)
			}
			if !fails && !strings.Contains(csiDriver(t, bin, driver, args...), field) {
				t.Errorf("%s, %s: it is not set", version, driver)
			}
		}
	}
}

// csiDriver returns the rendered CSIDriver of a driver.
func csiDriver(t *testing.T, bin, driver string, args ...string) string {
	t.Helper()
	objects, err := Render(t.Context(), bin, args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Source == driver+"/csidriver.yaml" {
			return o.Text
		}
	}
	t.Fatalf("no CSIDriver of %s", driver)
	return ""
}

// TestUnusualValues: values that few have are taken where they are good.
func TestUnusualValues(t *testing.T) {
	bin := programs(t)
	for name, values := range map[string]string{
		"a name that begins with a digit": "hostpath: {driverName: 3par.csi.example.com}",
		"a client of its own": "hostpath: {extraArgs: [--peer-client=mine], certificates: {source: " +
			"secrets}}",
		"a gate that changes nothing of it": "hostpath: {controller: {extraArgs: " +
			"[--feature-gates=AnnotateFsResize=false, --leader-election-lease-duration=20s]}}",
		"a registry without a name":          "images: {registry: \"[fd00::10]:5000/causeway\"}",
		"a size with a fraction":             "tests: {size: 1.5Gi}",
		"an issuer that is taken back":       "hostpath: {certificates: {issuerRef: null}}",
		"disks of a cloud that is elsewhere": attachedWith("", ""),
		"labels of your own backend":         "hostpath: {backendArgs: [--a], csiDriver: {seLinuxMount: true}}",
		"images by default":                  "hostpath: {kinds: [image, directory]}",
		"a share with the longest name": "smb: {enabled: true, shares: {" + strings.Repeat("a", 57) +
			": {source: //a/b, secretName: c}}}",
		"flags of a driver that is off":                       "hostpath: {enabled: false, extraArgs: [--peer-client=mine]}",
		"images of Linux beside a limited account on Windows": "hostpath: {windows: {enabled: true, runAsUserName: group}}",
		"SYSTEM in lower case": `hostpath: {windows: {enabled: true, runAsUserName: 'nt authority\system'}, ` +
			"storageClasses: {x: {kind: image, fsType: ntfs, mountOptions: [ro]}}}",
		"a limited account of a driver that is off": "smb: {windows: {enabled: true, runAsUserName: group}}",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := renderWith(t, bin, values); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestThePagesValues: the file of values in docs/how-to/install.md has the effects in its comments.
func TestThePagesValues(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(Sources(), "docs", "how-to", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	var values strings.Builder // a minimum, and examples
	for _, block := range regexp.MustCompile("(?s)```yaml\n(# values.yaml[^\n]*\n.*?)```").FindAllSubmatch(page, -1) {
		values.Write(block[1])
	}
	if values.Len() == 0 {
		t.Fatal("docs/how-to/install.md has no values")
	}
	objects, err := renderWith(t, programs(t), values.String())
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, o := range objects {
		all.WriteString(o.Text)
	}
	for _, want := range []string{"image: registry.example/driver:dev\n", "health-monitor,snapshot-controller\n",
		"kind: NetworkPolicy\n", "  name: causeway-hostpath-read-ahead\n", "    node-17\n"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("with the page's values there is no %q", want)
		}
	}
	for _, value := range regexp.MustCompile("`((?:hostpath|snapshotController|networkPolicy|images|tests)\\.[a-zA-Z.]+)`").FindAllSubmatch(page, -1) {
		if err := exists(string(value[1])); err != nil && string(value[1]) != "hostpath.csi.causeway.dev" {
			t.Errorf("docs/how-to/install.md: %v", err)
		}
	}
}

// exists reports that values.yaml has no such value.
func exists(path string) error {
	text, err := os.ReadFile(filepath.Join(Directory(), "values.yaml"))
	if err != nil {
		return err
	}
	var values any
	if err := yaml.Unmarshal(text, &values); err != nil {
		return err
	}
	for key := range strings.SplitSeq(path, ".") {
		m, _ := values.(map[string]any)
		value, ok := m[key]
		if !ok {
			return fmt.Errorf("values.yaml has no %s", path)
		}
		values = value
	}
	return nil
}

// TestCertificates: Helm's certificates permit connections from the router to nodes, and no others.
func TestCertificates(t *testing.T) {
	objects, err := Render(t.Context(), programs(t), "--set=hostpath.certificates.days=100")
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]map[string][]byte{}
	for _, o := range objects {
		var s struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string][]byte
		}
		if err := yaml.Unmarshal([]byte(o.Text), &s); err == nil && s.Kind == "Secret" {
			secrets[s.Metadata.Name] = s.Data
		}
	}
	router, nodes := secrets["causeway-router-generated"], secrets["causeway-nodes-generated"]
	for _, s := range []map[string][]byte{router, nodes} {
		if _, err := tls.X509KeyPair(s["tls.crt"], s["tls.key"]); err != nil {
			t.Fatal(err)
		}
	}
	believes := func(reader, shown map[string][]byte, name string, usage x509.ExtKeyUsage) error {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(reader["ca.crt"]) {
			t.Fatal("ca.crt has no certificate")
		}
		block, _ := pem.Decode(shown["tls.crt"])
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for days, want := range map[int]bool{99: true, 101: false} {
			_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage},
				CurrentTime: time.Now().Add(time.Duration(days) * 24 * time.Hour)})
			if shownTo := (err == nil); shownTo != want && want {
				return err
			} else if shownTo != want {
				t.Errorf("%s is good for more than 100 days", name)
			}
		}
		return nil
	}
	if err := believes(nodes, router, "causeway-router", x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("a node does not believe the router: %v", err)
	}
	if err := believes(router, nodes, "causeway-nodes", x509.ExtKeyUsageServerAuth); err != nil {
		t.Errorf("the router does not believe a node: %v", err)
	}
	if believes(nodes, nodes, "causeway-nodes", x509.ExtKeyUsageClientAuth) == nil {
		t.Error("a node believes another node, which may then call it")
	}
	if believes(router, router, "causeway-router", x509.ExtKeyUsageServerAuth) == nil {
		t.Error("the router believes itself")
	}
}

// baseValues switch on everything at once, so that each value can be seen to do something.
const baseValues = `
namespace: {name: storage, create: true}
hostpath:
  windows: {enabled: true}
  volumeAttributesClasses: {x: {label: x}}
smb:
  enabled: true
  windows: {enabled: true}
  snapshotClass: {create: true, controllerSecretName: x}
networkPolicy: {enabled: true}
monitoring: {kind: PodMonitor, dashboards: {create: true}}
admission: {inline: {maxSize: 2Gi}}
`

// sharesValues have a share with a secret, and classes with secrets of the controller.
const sharesValues = `
smb:
  enabled: true
  shares: {nas: {source: //nas/share, secretName: of-the-share}, open: {source: //open/share, guest: true}}
  storageClasses:
    a: {source: //nas/share, secretName: of-nodes}
`

// TestSecretsOfShares: the secrets of shares are mounted in the controller's driver alone, and no
// account may read a secret through the API without a class that names it or readAllSecrets.
func TestSecretsOfShares(t *testing.T) {
	bin := programs(t)
	for name, tc := range map[string]struct{ values, want string }{
		"no secret of the controller": {sharesValues, ""},
		"a class with a secret of the controller": {sharesValues +
			"    b: {source: //b/share, secretName: x, controllerSecretName: other, controllerSecretNamespace: apps}\n" +
			"    c: {source: //c/share, secretName: x, controllerSecretName: third, controllerSecretNamespace: apps}\n",
			"Role apps [other third]"},
		"a class of snapshots with a secret": {sharesValues +
			"    b: {source: //b/share, secretName: x, controllerSecretName: other, controllerSecretNamespace: apps}\n" +
			"  snapshotClass: {create: true, controllerSecretName: of-snapshots, controllerSecretNamespace: apps}\n",
			"Role apps [of-snapshots other]"},
		"a class of snapshots that is not created": {sharesValues +
			"  snapshotClass: {create: false, controllerSecretName: of-snapshots}\n", ""},
		"all secrets": {sharesValues + "  controller: {readAllSecrets: true}\n", "ClusterRole  []"},
	} {
		objects, err := renderWith(t, bin, tc.values)
		if err != nil {
			t.Fatal(err)
		}
		var rights, mounts []string
		for _, o := range objects {
			if !strings.HasPrefix(o.Source, "smb/") {
				continue
			}
			var role struct {
				Kind     string
				Metadata struct{ Namespace string }
				Rules    []struct{ Resources, ResourceNames []string }
			}
			if err := yaml.Unmarshal([]byte(o.Text), &role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				for _, resource := range rule.Resources {
					switch resource {
					case "secrets":
						rights = append(rights, fmt.Sprintln(role.Kind, role.Metadata.Namespace, rule.ResourceNames))
					case "nodes", "csinodes", "volumegroupsnapshotclasses", "volumegroupsnapshotcontents":
						t.Errorf("%s: the right to %s", name, resource)
					}
				}
			}
			if n := strings.Count(o.Text, "of-the-share"); n > 0 {
				mounts = append(mounts, fmt.Sprint(o.Source, " ", n))
			}
		}
		if got := strings.TrimSpace(strings.Join(rights, "")); got != tc.want {
			t.Errorf("%s: the rights to secrets are %q, want %q", name, got, tc.want)
		}
		if want := []string{"smb/controller.yaml 1"}; !slices.Equal(mounts, want) {
			t.Errorf("%s: the secret of the share is in %v, want %v", name, mounts, want)
		}
	}
}

// TestRulesAndDashboards: the rules are those of the file, in a cluster with their CRD or if the
// values demand them; each dashboard is in a ConfigMap.
func TestRulesAndDashboards(t *testing.T) {
	bin := programs(t)
	const crd = "--api-versions=monitoring.coreos.com/v1/PrometheusRule"
	for name, c := range map[string]struct {
		args  []string
		rules bool
	}{
		"without the CRD":               {nil, false},
		"with the CRD":                  {[]string{crd}, true},
		"with the CRD, off":             {[]string{crd, "--set=monitoring.rules.create=false"}, false},
		"on, for a cluster not at hand": {[]string{"--set=monitoring.rules.create=true,monitoring.labels.release=p"}, true},
	} {
		objects, err := Render(t.Context(), bin, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range objects {
			var rule struct {
				Kind     string
				Metadata struct{ Labels map[string]string }
				Spec     any
			}
			if o.Source != "rules.yaml" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(Directory(), "files", "rules.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if err := errors.Join(yaml.Unmarshal([]byte(o.Text), &rule), yaml.Unmarshal(text, &want)); err != nil {
				t.Fatal(err)
			}
			found = true
			if rule.Kind != "PrometheusRule" || !reflect.DeepEqual(rule.Spec, want) {
				t.Errorf("%s: the object is a %s with %v", name, rule.Kind, rule.Spec)
			}
			if release := rule.Metadata.Labels["release"]; name[:2] == "on" && release != "p" {
				t.Errorf("%s: the label of the values is %q", name, release)
			}
		}
		if found != c.rules {
			t.Errorf("%s: rules = %v", name, found)
		}
	}
	objects, err := renderWith(t, bin, "monitoring: {dashboards: {create: true, annotations: {folder: storage}}}\n")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(Directory(), "files", "dashboards", "*.json"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range objects {
			var m core.ConfigMap
			if err := yaml.Unmarshal([]byte(o.Text), &m); err != nil || m.Kind != "ConfigMap" {
				continue
			}
			found = found || m.Data["causeway-"+filepath.Base(file)] == string(want) &&
				m.Labels["grafana_dashboard"] == "1" && m.Annotations["folder"] == "storage"
		}
		if !found {
			t.Errorf("no ConfigMap has %s", file)
		}
	}
}

// TestSecretOfSnapshots: the class of snapshots names a secret for each call about a snapshot, only
// if the values have a secret.
func TestSecretOfSnapshots(t *testing.T) {
	bin := programs(t)
	for values, want := range map[string]map[string]string{
		"{create: true}": nil,
		"{create: true, controllerSecretName: x}": {
			"csi.storage.k8s.io/snapshotter-secret-name":           "x",
			"csi.storage.k8s.io/snapshotter-secret-namespace":      "causeway",
			"csi.storage.k8s.io/snapshotter-list-secret-name":      "x",
			"csi.storage.k8s.io/snapshotter-list-secret-namespace": "causeway"},
		"{create: true, controllerSecretName: x, controllerSecretNamespace: apps}": {
			"csi.storage.k8s.io/snapshotter-secret-name":           "x",
			"csi.storage.k8s.io/snapshotter-secret-namespace":      "apps",
			"csi.storage.k8s.io/snapshotter-list-secret-name":      "x",
			"csi.storage.k8s.io/snapshotter-list-secret-namespace": "apps"},
	} {
		objects, err := renderWith(t, bin, sharesValues+"  snapshotClass: "+values+"\n")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range objects {
			var class struct {
				Kind       string
				Parameters map[string]string
			}
			if err := yaml.Unmarshal([]byte(o.Text), &class); err != nil {
				t.Fatal(err)
			}
			if class.Kind == "VolumeSnapshotClass" && strings.HasPrefix(o.Source, "smb/") {
				found = true
				if !maps.Equal(class.Parameters, want) {
					t.Errorf("%s: the parameters are %v, want %v", values, class.Parameters, want)
				}
			}
		}
		if !found {
			t.Errorf("%s: there is no class of snapshots", values)
		}
	}
}

// TestClassesThatHelmTestLeavesOut: helm test leaves no data behind, and writes into no directory
// of an administrator.
func TestClassesThatHelmTestLeavesOut(t *testing.T) {
	objects, err := renderWith(t, programs(t), sharesValues+`
    deletes: {source: //nas/share, secretName: x, parameters: {onDelete: delete, existing: refuse}}
    retains: {source: //nas/share, secretName: x, parameters: {onDelete: retain}}
    archives: {source: //nas/share, secretName: x, parameters: {onDelete: archive}}
    uses: {source: //nas/share, secretName: x, parameters: {subDir: shared, existing: use}}
    reclaims: {source: //nas/share, secretName: x, reclaimPolicy: Retain}
    gone: null
hostpath: {enabled: false}
`)
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for _, o := range objects {
		var pod core.Pod
		if !strings.HasPrefix(o.Source, "tests/") {
			continue
		}
		if err := yaml.Unmarshal([]byte(o.Text), &pod); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod.Name)
	}
	slices.Sort(pods)
	if want := []string{"causeway-test-a-read", "causeway-test-a-write", "causeway-test-deletes-read",
		"causeway-test-deletes-write"}; !slices.Equal(pods, want) {
		t.Errorf("helm test has the pods %v, want %v", pods, want)
	}
}

// alternatives are other values for those of values.yaml for which "another" is invalid, by their
// paths. Numbers become others, and true false. Empty values are tested elsewhere.
var alternatives = map[string]string{
	"commonLabels":                                           `{a: b}`,
	"env":                                                    `{A: b}`,
	"images/pullSecrets":                                     `[x]`,
	"images/driver/digest":                                   `"sha256:x"`,
	"log/format":                                             `json`,
	"hostpath/extraArgs":                                     `[--a]`,
	"hostpath/backendArgs":                                   `[--a]`,
	"hostpath/csiDriver/storageCapacity":                     `false`,
	"hostpath/csiDriver/inlineVolumes":                       `false`,
	"hostpath/csiDriver/attachRequired":                      "", // the configuration attached
	"hostpath/controller/privileged":                         "", // the configuration attached
	"hostpath/controller/backendArgs":                        "", // the configuration attached-cloud
	"hostpath/controller/secretName":                         "", // the configuration attached-cloud
	"hostpath/forgottenNodes":                                `[x]`,
	"hostpath/storageClasses/causeway-hostpath/kind":         `image`,
	"hostpath/storageClasses/causeway-hostpath-image/kind":   `directory`,
	"hostpath/storageClasses/causeway-hostpath-image/fsType": `xfs`,
	"hostpath/snapshotClass/parameters":                      `{consistency: none}`,
	"hostpath/volumeAttributesClasses":                       `{y: {label: y}}`,
	"hostpath/certificates/source":                           `cert-manager`,
	"hostpath/certificates/days":                             "", // TestCertificates
	"hostpath/certificates/issuerRef":                        "", // the configuration issuer
	"hostpath/certificates/nodesDirectory":                   "", // the configuration least
	"smb/storageClasses":                                     `{x: {source: //a/b, secretName: c}}`,
	"smb/windows/runAsUserName":                              `"nt authority\\system"`, // no other account maps shares
	"smb/shares":                                             `{x: {source: //a/b, secretName: c}}`,
	"networkPolicy/metricsFrom":                              `[{podSelector: {}}]`,
	"networkPolicy/nodeEgress":                               `[{}]`,
	"hostpath/kinds":                                         `[image, directory]`,
	"hostpath/csiDriver/seLinuxMount":                        "", // the configuration images
	"hostpath/lostRoots":                                     `[x]`,
	"enabled":                                                "", // for a chart above this chart
	"admission/inline/maxSize":                               `3Gi`,
	"admission/inline/namespaceLabels":                       `{a: b}`,
	"monitoring/kind":                                        `ServiceMonitor`,
	"monitoring/labels":                                      `{a: b}`,
	"monitoring/rules/create":                                `true`,
	"monitoring/dashboards/create":                           `false`, // on in baseValues
	"monitoring/dashboards/labels/grafana_dashboard":         `"2"`,
	"monitoring/dashboards/annotations":                      `{a: b}`,
	"namespace/create":                                       `false`, "networkPolicy/enabled": `false`, "smb/enabled": `false`, "smb/snapshotClass/create": `false`, "hostpath/windows/enabled": `false`, "smb/windows/enabled": `false`, // on in baseValues
}

// leaves adds the values below a value, by their paths.
func leaves(path string, value any, all map[string]any) {
	m, ok := value.(map[string]any)
	if !ok || len(m) == 0 {
		all[path] = value
		return
	}
	for key, v := range m {
		leaves(strings.TrimPrefix(path+"/"+key, "/"), v, all)
	}
}

// nested is the JSON of an object that has a value at a path.
func nested(path, value string) string {
	keys := strings.Split(path, "/")
	slices.Reverse(keys)
	for _, key := range keys {
		name, err := json.Marshal(key)
		if err != nil {
			panic(err)
		}
		value = fmt.Sprintf("{%s: %s}", name, value)
	}
	return value
}

// TestEveryValueDoesSomething changes each value of values.yaml in turn, and checks that the
// rendered objects differ.
func TestEveryValueDoesSomething(t *testing.T) {
	bin := programs(t)
	text, err := os.ReadFile(filepath.Join(Directory(), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	leaves("", values, all)
	// Everything is on, so that values that depend on a switch have an effect.
	base := filepath.Join(t.TempDir(), "base.yaml")
	if err := os.WriteFile(base, []byte(baseValues), 0o644); err != nil {
		t.Fatal(err)
	}
	render := func(more string) (string, error) {
		path := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(path, []byte(more), 0o644); err != nil {
			return "", err
		}
		objects, err := Render(t.Context(), bin, "--values="+base, "--values="+path, "--skip-schema-validation")
		var out strings.Builder
		for _, o := range objects {
			out.WriteString(secret.ReplaceAllString(o.Text, "$1: …"))
		}
		return out.String(), err
	}
	before, err := render("{}")
	if err != nil {
		t.Fatal(err)
	}
	for path := range maps.Keys(alternatives) {
		if _, ok := all[path]; !ok {
			t.Errorf("values.yaml has no %s", path)
		}
	}
	for path, value := range all {
		other, ok := alternatives[path]
		if last := path[strings.LastIndexByte(path, '/')+1:]; !ok {
			other, ok = map[string]string{"nodeSelector": `{a: b}`, "podAnnotations": `{a: b}`, "affinity": `{nodeAffinity: {}}`, "tolerations": `[{key: a, operator: Exists}]`, "requiredDuringSchedulingIgnoredDuringExecution": "", "nodeSelectorTerms": `[]`, "extraArgs": `[--a]`}[last]
		}
		if ok && other == "" {
			continue
		}
		switch v := value.(type) {
		case bool:
			if !ok {
				other, ok = fmt.Sprint(!v), true
			}
		case string:
			if !ok {
				other, ok = `"another"`, true
			}
		case float64:
			if !ok {
				other, ok = fmt.Sprint(v+7), true
			}
		}
		if !ok {
			t.Errorf("there is no other value for %s", path)
			continue
		}
		if after, err := render(nested(path, other)); err != nil || after == before {
			t.Errorf("%s: %s makes no difference, %v", path, other, err)
		}
	}
}

// TestNamesThatLookLikeNumbers: a namespace, a release and the names in values may be of digits,
// and stay strings in YAML.
func TestNamesThatLookLikeNumbers(t *testing.T) {
	bin := programs(t)
	args := []string{"template", "7", Directory(), "--namespace=2024"}
	// Since Kubernetes 1.36 it may be (RelaxedServiceNameValidation).
	if _, err := Helm(t.Context(), bin, append(args, "--kube-version=v1.35.3")...); err == nil ||
		!strings.Contains(err.Error(), "a Service cannot be called 7-causeway") {
		t.Errorf("%v", err)
	}
	args = append(args, "--kube-version=v1.37.1")
	if _, err := Helm(t.Context(), bin, args...); err != nil {
		t.Error(err)
	}
	out, err := Helm(t.Context(), bin,
		append(args, "--set=fullnameOverride=causeway", `--set-json=images.pullSecrets=["1"]`,
			`--set-json=hostpath.node.priorityClassName="1"`,
			`--set-json=hostpath.controller.priorityClassName="1"`, "--set=snapshotController.enabled=true,monitoring.kind=PodMonitor,networkPolicy.enabled=true,resourceQuota.create=true")...)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := split(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		var typed struct {
			Metadata         meta.ObjectMeta
			ImagePullSecrets []core.LocalObjectReference
			Subjects         []rbac.Subject
			Spec             struct{ Template core.PodTemplateSpec }
		}
		if err := yaml.Unmarshal([]byte(o.Text), &typed); err != nil {
			t.Errorf("%s: %v", o.Source, err)
		}
	}
}

// TestProjectedFilesAreReadable: the files of a projected volume belong to root, so a pod that runs
// as another user needs an fsGroup, unless all may read them. Without it a sidecar does not trust
// the API server: it cannot read ca.crt.
func TestProjectedFilesAreReadable(t *testing.T) {
	bin := programs(t)
	pods := 0
	for _, c := range configurations(t) {
		objects, err := Render(t.Context(), bin, c.Args...)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			var w struct {
				Spec struct {
					Template struct{ Spec core.PodSpec }
				}
			}
			if err := yaml.Unmarshal([]byte(o.Text), &w); err != nil {
				t.Fatal(err)
			}
			pod := w.Spec.Template.Spec
			for _, v := range pod.Volumes {
				if v.Projected == nil || v.Projected.DefaultMode == nil || *v.Projected.DefaultMode&0o004 != 0 {
					continue
				}
				pods++
				if c := pod.SecurityContext; c == nil || (c.FSGroup == nil && c.RunAsUser != nil && *c.RunAsUser != 0) {
					t.Errorf("%s: the pod cannot read the files of its volume %s: no fsGroup", o.Source, v.Name)
				}
			}
		}
	}
	if pods == 0 {
		t.Error("no pod has such a volume")
	}
}
