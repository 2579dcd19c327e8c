package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// marker is in every secret of the test.
const marker = "m4rk3rS3cr3t"

// write returns the files of an archive.
func write(t *testing.T, c *fake.Cluster) map[string]string {
	t.Helper()
	files, _ := writeAll(t, c)
	return files
}

// writeAll returns the files of an archive, and whether it is complete.
func writeAll(t *testing.T, c *fake.Cluster) (files map[string]string, complete bool) {
	t.Helper()
	clients := c.Clients()
	v, err := cluster.Gather(context.Background(), clients.Client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	complete, err = Write(context.Background(), clients.Client, v, Options{Version: "test", LogLimit: 1 << 20, Program: "/driver"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, &out), complete
}

func read(t *testing.T, in io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if !fs.ValidPath(h.Name) || strings.Contains(h.Name, `\`) || !strings.HasPrefix(h.Name, "causeway-bundle/") {
			t.Errorf("the archive has the name %q", h.Name)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "causeway-bundle/")] = string(data)
	}
}

func TestNoSecretIsInTheArchive(t *testing.T) {
	c := fake.Healthy()
	c.Groups["authorization.k8s.io"], c.Groups["rbac.authorization.k8s.io"] = []string{"v1", "v9"}, []string{"v8"}
	c.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "smb"},
		Data: map[string][]byte{"password": []byte(marker)}, StringData: map[string]string{"x": marker}})
	c.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "shares", Labels: map[string]string{"app.kubernetes.io/part-of": "causeway"},
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: `{"x":"` + marker + `"}`}},
		Data: map[string]string{"shares.yaml": "- source: //server/share\n  username: u\n  password: " + marker + "\n  other: 'kept-value'\n",
			"groups.yaml": "authorization.k8s.io: " + marker + "\n", "authorization.k8s.io": marker,
			"token": marker, "key.pem": "-----BEGIN EC PRIVATE KEY-----\n" + marker + "\n-----END EC PRIVATE KEY-----\n"},
		BinaryData: map[string][]byte{"x": []byte(marker)}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "of-another-application"}, Data: map[string]string{"x": marker}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "sh.helm.release.v1.causeway.v1",
			Labels: map[string]string{"owner": "helm", "app.kubernetes.io/part-of": "causeway"}}, Data: map[string]string{"release": marker}})
	p := fake.Get[*corev1.Pod](c, "causeway-node-1")
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "SMB_PASSWORD", Value: marker},
		corev1.EnvVar{Name: "URL", Value: "https://user:" + marker + "@server/x"}, corev1.EnvVar{Name: "KEPT", Value: "kept-env"},
		corev1.EnvVar{Name: "DATABASE_DSN", Value: marker}, corev1.EnvVar{Name: "CONNECTION_STRING", Value: marker}, corev1.EnvVar{Name: "CLIENT_KEY", Value: marker},
		corev1.EnvVar{Name: "DATABASE", Value: "user:" + marker + "@tcp(host:3306)/db"})
	p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--smb-password="+marker, "--token", marker, `--json={"secret":"`+marker+`"}`)
	p.Status.ContainerStatuses[0].RestartCount = 1
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: fake.Driver, VolumeHandle: "h",
			VolumeAttributes: map[string]string{"password": marker, "restuserkey": marker, "url": "https://h/x?sv=1&sig=" + marker}}}}}
	c.Add(volume)
	c.Answer("causeway-node-1", "driver", "/readyz", 503, "Authorization: Bearer "+marker+marker)
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, `{"driver":"x","volumes":[],"note":"password=`+marker+`"}`)
		return err
	}
	c.Refuse["csidrivers"] = errors.New("forbidden: token=" + marker)
	c.Event("Pod", fake.Namespace, "causeway-node-1", "Failed", "password: "+marker)
	files, complete := writeAll(t, c)
	encoded := base64.StdEncoding.EncodeToString([]byte(marker))
	all := ""
	for name, data := range files {
		for _, secret := range []string{marker, encoded} {
			if i := strings.Index(data, secret); i >= 0 {
				t.Errorf("%s has the secret: %s", name, data[max(0, i-80):i+len(secret)])
			}
		}
		all += data
	}
	for _, kept := range []string{"kept-env", "kept-value", "//server/share", "secretName: causeway-nodes-tls", "--root=/var/lib/causeway",
		"forbidden", "causeway_volumes 3", "of-another-application", "sh.helm.release.v1.causeway.v1", "pv-1", "Not collected:", "kubectl causeway volume NAME", "fake logs"} {
		if !strings.Contains(all, kept) {
			t.Errorf("%q is not in the archive", kept)
		}
	}
	for _, name := range []string{"MANIFEST", "status.json", "doctor.json", "version.json", "records/" + fake.Driver + ".json",
		"objects/causeway/pods.yaml", "pods/causeway-node-1/driver.log", "pods/causeway-node-1/driver.previous.log",
		"pods/causeway-node-1/driver-http-metrics.txt"} {
		if files[name] == "" {
			t.Errorf("%s is not in the archive", name)
		}
	}
	var versions struct{ APIGroups map[string][]string }
	if err := json.Unmarshal([]byte(files["version.json"]), &versions); err != nil ||
		!slices.Equal(versions.APIGroups["authorization.k8s.io"], []string{"v1", "v9"}) ||
		!slices.Equal(versions.APIGroups["rbac.authorization.k8s.io"], []string{"v8"}) {
		t.Errorf("%v: %s", err, files["version.json"])
	}
	if complete || strings.Contains(files["MANIFEST"], "secrets.yaml") || !strings.Contains(files["MANIFEST"], "csidrivers") {
		t.Errorf("%s", files["MANIFEST"])
	}
}

// Secrets are missing by design: without them the archive is complete.
func TestAnArchiveIsComplete(t *testing.T) {
	c := fake.Healthy()
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, "{}")
		return err
	}
	if files, complete := writeAll(t, c); !complete {
		t.Errorf("%s", files["MANIFEST"])
	}
	c.Refuse["csinodes"] = errors.New("forbidden")
	if files, complete := writeAll(t, c); complete {
		t.Errorf("%s", files["MANIFEST"])
	}
}

// The driver may be in kube-system, with other applications.
func TestObjectsOfOthersAreNames(t *testing.T) {
	c := fake.Healthy()
	meta := func(name, kind, owner string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: fake.Namespace, Name: name}
		if owner != "" {
			m.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner}}
		}
		return m
	}
	template := func(value string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Env: []corev1.EnvVar{{Name: "X", Value: value}}}}}}
	}
	c.Add(&appsv1.Deployment{ObjectMeta: meta("theirs", "", ""), Spec: appsv1.DeploymentSpec{Template: template(marker)}},
		&appsv1.DaemonSet{ObjectMeta: meta("theirs-too", "", ""), Spec: appsv1.DaemonSetSpec{Template: template(marker)}},
		&appsv1.ReplicaSet{ObjectMeta: meta("theirs-1", "Deployment", "theirs"), Spec: appsv1.ReplicaSetSpec{Template: template(marker)}},
		&corev1.Pod{ObjectMeta: meta("theirs-1-2", "ReplicaSet", "theirs-1"), Spec: template(marker).Spec},
		&appsv1.ReplicaSet{ObjectMeta: meta("causeway-controller-6d", "Deployment", "causeway-controller"), Spec: appsv1.ReplicaSetSpec{Template: template("kept-1")}},
		&corev1.Pod{ObjectMeta: meta("causeway-controller-6d-x", "ReplicaSet", "causeway-controller-6d"), Spec: template("kept-2").Spec},
		&corev1.Service{ObjectMeta: meta("their-service", "", ""), Spec: corev1.ServiceSpec{ExternalName: marker}})
	c.Event("Pod", fake.Namespace, "theirs-1-2", "Failed", "x "+marker)
	c.Event("Pod", fake.Namespace, "causeway-node-1", "Failed", "kept-3")
	c.Event("Pod", fake.Namespace, "causeway-node-gone", "Failed", "kept-4")
	c.Event("DaemonSet", fake.Namespace, "causeway-node", "Failed", "kept-5")
	all := ""
	for name, data := range write(t, c) {
		if i := strings.Index(data, marker); i >= 0 {
			t.Errorf("%s has a value of another application: %s", name, data[max(0, i-80):i])
		}
		all += data
	}
	for _, kept := range []string{"kept-1", "kept-2", "kept-3", "kept-4", "kept-5", "name: theirs-1-2", "name: theirs-too", "name: their-service",
		"holderIdentity", "storageClassName: causeway-hostpath"} {
		if !strings.Contains(all, kept) {
			t.Errorf("%q is not in the archive", kept)
		}
	}
}

// Names of parameters of other drivers are not known, so neither are those of their secrets.
func TestStorageOfOtherDriversIsNames(t *testing.T) {
	c := fake.Healthy()
	name := func(n string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: n, Annotations: map[string]string{"x": marker}, Labels: map[string]string{"x": marker}}
	}
	volume := func(n, driver, value string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: n}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: value,
				VolumeAttributes: map[string]string{"x": value}}}}}
	}
	attachment := func(n, driver, value string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: n}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: value}}
	}
	content := func(group, kind, n, driver, value string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + ".storage.k8s.io/v1", "kind": kind,
			"metadata": map[string]any{"name": n}, "spec": map[string]any{"driver": driver, "source": map[string]any{"x": value}}}}
	}
	theirs := name("pv-without-driver")
	theirs.Labels["app.kubernetes.io/part-of"] = "causeway"
	c.Add(volume("pv-theirs", "csi.example.com", marker), volume("pv-ours", fake.Driver, "kept-volume"),
		&corev1.PersistentVolume{ObjectMeta: theirs, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: marker, Path: "/"}}}},
		&storagev1.StorageClass{ObjectMeta: name("class-theirs"), Provisioner: "csi.example.com", Parameters: map[string]string{"x": marker}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class-ours"}, Provisioner: fake.Driver, Parameters: map[string]string{"x": "kept-class"}},
		&storagev1.CSIDriver{ObjectMeta: name("csi.example.com"), Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: marker}}}},
		attachment("attachment-theirs", "csi.example.com", marker), attachment("attachment-ours", fake.Driver, "kept-node"))
	c.Custom = append(c.Custom, content("snapshot", "VolumeSnapshotContent", "content-theirs", "csi.example.com", marker),
		content("snapshot", "VolumeSnapshotContent", "content-ours", fake.Driver, "kept-content"),
		content("groupsnapshot", "VolumeGroupSnapshotContent", "group-theirs", "csi.example.com", marker),
		content("groupsnapshot", "VolumeGroupSnapshotContent", "group-ours", fake.Driver, "kept-group"))
	all := ""
	for name, data := range write(t, c) {
		if i := strings.Index(data, marker); i >= 0 {
			t.Errorf("%s has a value of another driver: %s", name, data[max(0, i-80):i])
		}
		if strings.HasPrefix(name, "objects/") {
			all += data
		}
	}
	for _, kept := range []string{"kept-volume", "kept-class", "kept-node", "kept-content", "kept-group", "name: pv-theirs", "name: pv-without-driver",
		"name: class-theirs", "name: csi.example.com", "name: attachment-theirs", "name: content-theirs", "name: group-theirs",
		"podInfoOnMount", "kernelVersion", "nodeID: node-1"} {
		if !strings.Contains(all, kept) {
			t.Errorf("%q is not in the archive", kept)
		}
	}
}

// volumes is a client whose PersistentVolumes come from another one: the fake has no pages.
type volumes struct {
	dynamic.Interface
	from dynamic.Interface
}

func (v volumes) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	if r.Resource == "persistentvolumes" {
		return v.from.Resource(r)
	}
	return v.Interface.Resource(r)
}

// A list of a large cluster comes in pages, and a server may end it early, or never.
func TestListsHavePages(t *testing.T) {
	for _, tc := range []struct {
		name        string
		pages       int // 0: without an end
		fails       int // the page with an error
		want        int
		lack        string
		pagesOfList int
	}{
		{"three pages", 3, 0, 3, "", 3},
		{"the second page fails", 3, 2, 1, "expired\n", 2},
		{"the first page fails", 3, 1, 0, "expired\n", 1},
		{"no end", 0, 0, maxObjects / pageSize, "objects persistentvolumes: only the first 200 objects", maxObjects / pageSize},
	} {
		asked := 0
		answer := func(r *http.Request) (*http.Response, error) {
			want := ""
			if asked > 0 {
				want = fmt.Sprint(asked)
			}
			if q := r.URL.Query(); q.Get("limit") != fmt.Sprint(pageSize) || q.Get("continue") != want {
				t.Errorf("%s: request %d is %s", tc.name, asked, r.URL)
			}
			if asked++; asked == tc.fails {
				return nil, errors.New("expired")
			}
			next := fmt.Sprint(asked)
			if asked == tc.pages {
				next = ""
			}
			body := fmt.Sprintf(`{"apiVersion":"v1","kind":"PersistentVolumeList","metadata":{"continue":%q},"items":[{"metadata":{"name":"page-%d"}}]}`, next, asked)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}
		from, err := dynamic.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1", Transport: roundTrip(answer), QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		client := fake.Healthy().Clients().Client
		client.Dynamic = volumes{client.Dynamic, from}
		v, err := cluster.Gather(t.Context(), client, cluster.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := Write(t.Context(), client, v, Options{LogLimit: 1 << 20, Program: "/driver"}, &out); err != nil {
			t.Fatal(err)
		}
		files := read(t, &out)
		if got := strings.Count(files["objects/persistentvolumes.yaml"], "name: page-"); got != tc.want || asked != tc.pagesOfList {
			t.Errorf("%s: %d objects of %d pages", tc.name, got, asked)
		}
		if !strings.Contains(files["MANIFEST"], tc.lack) || tc.lack == "" && strings.Contains(files["MANIFEST"], "objects persistentvolumes:") {
			t.Errorf("%s: %s", tc.name, files["MANIFEST"])
		}
	}
}

func TestSecretsInText(t *testing.T) {
	for in, want := range map[string]string{
		"Bearer abcdefghijkl":                    "Bearer REDACTED",
		`{"password": "a \" b","user":"u"}`:      `{"password": REDACTED`,
		`level=info password=abc user=u`:         `level=info password=REDACTED`,
		"smb://u:pw@server/x":                    "smb://REDACTED@server/x",
		"token eyJhbGciOi.eyJzdWIi.c2ln":         "token REDACTED",
		"secretName: x":                          "secretName: x",
		"csi.storage.k8s.io/node-secret-name: x": "csi.storage.k8s.io/node-secret-name: x",
		`secret "causeway-nodes-tls" not found`:  `secret "causeway-nodes-tls" not found`,
		"-----BEGIN PRIVATE KEY-----\nabc\n":     "REDACTED",
		"a\npassword: |\n  b\n\n  c\nkept: d":    "a\npassword: REDACTED\nkept: d",
		"passwords:\n- b\n- c\nkept: d":          "passwords:\nkept: d",
		"- password: b\n  c: d\n- kept":          "- password: REDACTED\n  c: d\n- kept",
		"2026-01-01T00:00:00.1Z password:\n2026-01-01T00:00:00.1Z   b\n2026-01-01T00:00:00.1Z kept": "2026-01-01T00:00:00.1Z password:\n2026-01-01T00:00:00.1Z kept",
		"bypassed=1 keys=2 tokenless": "bypassed=1 keys=2 tokenless",
		"db user:pw@tcp(h)/x kept":    "db REDACTED@tcp(h)/x kept",
		`{"a":"u:p@h","image":"r/i:v1@sha256:0123456789abcdef0123456789abcdef"}`: `{"a":"REDACTED@h","image":"r/i:v1@sha256:0123456789abcdef0123456789abcdef"}`,
		"r/i:v1@sha256:0123456789abcdef0123456789abcdef":                         "r/i:v1@sha256:0123456789abcdef0123456789abcdef",
		"10:00:00 mail to user@host":                                             "10:00:00 mail to user@host",
		"sentryDsn=x":                                                            "sentryDsn=REDACTED",
		"connectionString: x":                                                    "connectionString: REDACTED",
		"client-key: x":                                                          "client-key: REDACTED",
		"dnsPolicy: x":                                                           "dnsPolicy: x",
		"restuserkey: x":                                                         "restuserkey: REDACTED",
		"url: https://h/x?sv=1&sig=x&se=2":                                       "url: https://h/x?sv=1&sig=REDACTED",
		"assign sig=9 design=x":                                                  "assign sig=9 design=x",
	} {
		if got := text(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// shapes are the forms in which a secret $ may be in a log, an argument or a file. The number of
// lines says whether it may have several.
var shapes = []string{
	"password=$", "password%3D$", "password%3A$", "password: $", "password : $", "PASSWORD := $", "password => $", "a=b password=a&$", "password=[$", "password: {$}",
	"passphrase=correct horse $", "https://u:p@$@h", "https://$@h/x", "https://u:a/$@h", "password='it''$'", `password=\"ab\\\"$\"`,
	`msg="x" args="{\"password\":\"$\"}"`, "<password>$</password>", `<user password="$"/>`, `"password": ["$"]`, `passwords: ["x", $]`,
	"passwords: [x, $]", "run --password $", "sh -c 'run --smb-password $'", "-token $", `["--password", "$"]`, "DB_PASSWORD_OLD=$",
	"accountkey=$", "AccountKey=$", "storage-account-key: $", "keytab: $", "API key: $", "private_key_id=$", "encryptionKey=$",
	"Authorization: Basic $", "authorization: $", "Bearer $", "Cookie: a=$", "Set-Cookie: $", "credentials=$", "password[0]=$", "pass=$",
	"dbpass: $", "restuserkey: $", "userKey=$", "user key: $", "signature=$", "https://h/x?X-Amz-Signature=$", "https://h/x?a=b&token=$",
	"https://h/x?sig=$", "GET /x?sv=1&SIG=$", `{"url":"https://h/x?sv=1\u0026sig=$"}`, "https://h/?u=x%3Fsv%3D1%26sig%3D$", "<a href='/x?a=1&amp;sig=$'/>",
	"pwd=$", "password (new): $", "secretName: x, password: $",
}

// several are forms with several lines.
var several = []string{
	"password: |\n  $\n", "password: >-\n  x\n  $\n", "password:\n  $\n", "- password: |-\n    $\n", "  password: x\n    $\n",
	"password: \"a\n$\"", "PASSWORD='a\n$'", "password = \"\"\"\na\"b\n$\n\"\"\"", "passwords: [\n\"x\",\n\"$\"\n]",
	"\"passwords\": [\n  \"$\"\n]", "passwords:\n- x\n- $", "<password>\n$\n</password>", "- --password\n- $", "\"--password\",\n\"$\"",
	"--password \\\n$", "password: !!str\n  $", "password: &x |\n  $", "password: # note\n  $",
	"AAAA$\n-----END RSA PRIVATE KEY-----\n", "-----BEGIN OPENSSH PRIVATE KEY-----\n$", "x RSA PRIVATE KEY-----\n$\n-----END RSA PRIVATE KEY-----",
	"-----BEGIN PGP PRIVATE KEY BLOCK-----\n$\n-----END PGP PRIVATE KEY BLOCK-----",
}

func TestNoShapeOfASecretIsKept(t *testing.T) {
	stamp := func(s string) string { // as in a log
		return "2026-01-01T00:00:00.123456789Z " + strings.ReplaceAll(s, "\n", "\n2026-01-01T00:00:00.123456789Z ")
	}
	for _, shape := range slices.Concat(shapes, several) {
		for _, secret := range []string{marker, "a b " + marker, "a," + marker, "a&" + marker, "a{" + marker, "a[" + marker, `a"` + marker, "a'" + marker,
			"a;" + marker, "a]" + marker, "a}" + marker, "a@" + marker, "a: " + marker, "a=" + marker, "a#" + marker, "a</" + marker, `a\` + marker} {
			in := strings.ReplaceAll(shape, "$", secret)
			for _, in := range []string{in, stamp(in), "kept\n" + in, "    " + strings.ReplaceAll(in, "\n", "\n    ")} {
				if got := text(in); strings.Contains(got, marker) {
					t.Errorf("%q keeps the secret: %q", in, got)
				}
			}
			if got := file(in); strings.Contains(got, marker) {
				t.Errorf("a file %q keeps the secret: %q", in, got)
			}
		}
	}
	// A secret with several lines has an end that is known: a quote, a bracket, indentation, a
	// list.
	for _, shape := range []string{`password: "$"`, "password='$'", "password: {\nx: $\n}", "<password>$</password>", "passwords: [\n$\n]"} {
		if got := text(strings.ReplaceAll(shape, "$", "a\n"+marker)); strings.Contains(got, marker) {
			t.Errorf("%q keeps the secret: %q", shape, got)
		}
	}
}

// In YAML, JSON and objects the names decide, with values of any type and any content.
func TestNoNamedValueIsKept(t *testing.T) {
	for _, secret := range []string{marker, "a b\n" + marker, "a, & { [ ' \" \n" + marker + "\n"} {
		for _, name := range []string{"password", "DB_PASSWORD_OLD", "accountkey", "storage-account-key", "keytab", "passwords", "apiKey", "authorization", "restuserkey", "signature", "krb5cc", ".dockerconfigjson",
			"auth", "creds", "AUTH_HEADER", "CREDS_JSON"} {
			for _, v := range []any{secret, []any{secret}, map[string]any{"x": secret}, []any{map[string]any{"x": []any{secret}}}} {
				for _, document := range []any{map[string]any{name: v, "kept": "x"}, []any{map[string]any{"deep": map[string]any{name: v}, "kept": "x"}},
					map[string]any{"env": []any{map[string]any{"name": name, "value": v}}, "kept": "x"}} {
					data, err := json.Marshal(document)
					if err != nil {
						t.Fatal(err)
					}
					text, err := yaml.Marshal(document)
					if err != nil {
						t.Fatal(err)
					}
					for form, got := range map[string]string{"JSON": jsonText(string(data)), "JSON in a file": file(string(data)),
						"YAML": file("kept: y\n---\n" + string(text)), "an argument": fmt.Sprint(values([]any{"--x", "y", "--" + name, secret, "kept"}, true))} {
						if strings.Contains(got, marker) || !strings.Contains(got, "kept") {
							t.Errorf("%s: %q", form, got)
						}
					}
				}
			}
		}
	}
}

func TestTheEndOfALogIsKept(t *testing.T) {
	log := strings.Repeat("0123456789\n", 1000)
	data, cut, err := tail(strings.NewReader(log+"last\n"), 100)
	if err != nil || !cut || len(data) > 100 || !strings.HasSuffix(string(data), "last\n") || !strings.HasPrefix(string(data), "0123456789\n") {
		t.Errorf("%q, %v, %v", data, cut, err)
	}
	if data, cut, err = tail(strings.NewReader("a\nb\n"), 100); err != nil || cut || string(data) != "a\nb\n" {
		t.Errorf("%q, %v, %v", data, cut, err)
	}
}

// A log that breaks off is longer than the limit, too: half of its first line may be a secret
// without its name.
func TestTheEndOfALogThatBreaksOffBeginsWithALine(t *testing.T) {
	broken := errors.New("broken")
	r := io.MultiReader(strings.NewReader("password="+strings.Repeat("x", 50)+marker+"\nkept-1\nkept-2"), iotest.ErrReader(broken))
	if data, cut, err := tail(r, 30); !errors.Is(err, broken) || !cut || string(data) != "kept-1\nkept-2" {
		t.Errorf("%q, %v, %v", data, cut, err)
	}
}

// logs is a client whose logs come from a transport.
type logs struct {
	kubernetes.Interface
	from kubernetes.Interface
}

type logsCore struct {
	corev1client.CoreV1Interface
	from kubernetes.Interface
}

type logsPods struct {
	corev1client.PodInterface
	from corev1client.PodInterface
}

func (l logs) CoreV1() corev1client.CoreV1Interface { return logsCore{l.Interface.CoreV1(), l.from} }

func (l logsCore) Pods(namespace string) corev1client.PodInterface {
	return logsPods{l.CoreV1Interface.Pods(namespace), l.from.CoreV1().Pods(namespace)}
}

func (l logsPods) GetLogs(name string, o *corev1.PodLogOptions) *rest.Request {
	return l.from.GetLogs(name, o)
}

// roundTrip answers requests of logs.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// withLogs replaces the logs of a client.
func withLogs(t *testing.T, c cluster.Client, answer roundTrip) cluster.Client {
	t.Helper()
	from, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1", Transport: answer, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	c.Kube = logs{c.Kube, from}
	return c
}

// slow is the body of a log: it has a line after each pause, and stalls after the last one.
type slow struct {
	ctx    context.Context
	pauses []time.Duration
	ends   bool
}

func (s *slow) Read(p []byte) (int, error) {
	if len(s.pauses) == 0 {
		if s.ends {
			return 0, io.EOF
		}
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	select {
	case <-time.After(s.pauses[0]):
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	s.pauses = s.pauses[1:]
	return copy(p, "a-line\n"), nil
}

func (s *slow) Close() error { return nil }

// A kubelet with a disk that stalls accepts the request and sends nothing more.
func TestALogHasALimit(t *testing.T) {
	steps := func(n int, d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }
	for _, tc := range []struct {
		name   string
		accept bool // the request is answered
		pauses []time.Duration
		ends   bool
		takes  time.Duration
		lack   string
		log    string
	}{
		{"no answer", false, nil, false, cluster.ExecTimeout, "no data within 30s", ""},
		{"no data", true, nil, false, cluster.ExecTimeout, "no data within 30s", ""},
		{"it stalls after two lines", true, steps(2, time.Second), false, cluster.ExecTimeout + 2*time.Second, "no data within 30s", "a-line\na-line\n"},
		{"it is slow", true, steps(3, 20*time.Second), true, time.Minute, "", strings.Repeat("a-line\n", 3)},
		{"it has no end", true, steps(1000, 19*time.Second), true, cluster.ListTimeout, "no end within 5m0s", strings.Repeat("a-line\n", 15)},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := withLogs(t, fake.Healthy().Clients().Client, func(r *http.Request) (*http.Response, error) {
				if !tc.accept {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return &http.Response{StatusCode: http.StatusOK, Body: &slow{r.Context(), tc.pauses, tc.ends}, Request: r}, nil
			})
			v, err := cluster.Gather(t.Context(), client, cluster.Selection{})
			if err != nil {
				t.Fatal(err)
			}
			p := &v.Drivers[0].NodePods()[0].Status
			p.ContainerStatuses = p.ContainerStatuses[:1]
			for _, other := range slices.Concat(v.Drivers[0].ControllerPods(), v.Drivers[0].NodePods()[1:]) {
				other.Status.ContainerStatuses = nil
			}
			start := time.Now()
			var out bytes.Buffer
			if _, err := Write(t.Context(), client, v, Options{LogLimit: 1 << 20, Program: "/driver"}, &out); err != nil {
				t.Fatal(err)
			}
			files := read(t, &out)
			if d := time.Since(start); d != tc.takes {
				t.Errorf("%s: after %s, want %s", tc.name, d, tc.takes)
			}
			if got := files["pods/causeway-node-1/driver.log"]; got != tc.log {
				t.Errorf("%s: %q, want %q", tc.name, got, tc.log)
			}
			line := "pods/causeway-node-1/driver.log: " + tc.lack
			if has := strings.Contains(files["MANIFEST"], line); has != (tc.lack != "") {
				t.Errorf("%s: %s", tc.name, files["MANIFEST"])
			}
		})
	}
}

// counter counts requests.
type counter struct {
	mu               sync.Mutex
	now, most, total int
}

// begin counts a request until its end.
func (c *counter) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total, c.now = c.total+1, c.now+1
	c.most = max(c.most, c.now)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}
}

// One node whose disk stalls must not hold the logs of the others, and the API server must not get
// all requests at once.
func TestLogsAreReadAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.Healthy()
		for _, p := range []string{"causeway-node-1", "causeway-node-2", "causeway-controller-6d-1", "causeway-controller-6d-2"} {
			for i := range fake.Get[*corev1.Pod](c, p).Status.ContainerStatuses {
				fake.Get[*corev1.Pod](c, p).Status.ContainerStatuses[i].RestartCount = 1
			}
		}
		var n counter
		client := withLogs(t, c.Clients().Client, func(r *http.Request) (*http.Response, error) {
			defer n.begin()()
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		v, err := cluster.Gather(t.Context(), client, cluster.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := Write(t.Context(), client, v, Options{LogLimit: 1 << 20, Program: "/driver"}, io.Discard); err != nil {
			t.Fatal(err)
		}
		rounds := (n.total + logsAtOnce - 1) / logsAtOnce
		if d := time.Since(start); n.total <= logsAtOnce || n.most != logsAtOnce || d != time.Duration(rounds)*cluster.ExecTimeout {
			t.Errorf("%d requests, %d at once, after %s", n.total, n.most, d)
		}
	})
}

// The kubelet of a node that is not ready reads no log.
func TestPodsOfNodesThatAreNotReadyAreSkipped(t *testing.T) {
	c := fake.Healthy()
	fake.Get[*corev1.Node](c, "node-2").Status.Conditions[0].Status = corev1.ConditionUnknown
	clients := c.Clients()
	client := withLogs(t, clients.Client, func(r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Path, "node-2") || strings.Contains(r.URL.Path, "6d-2") {
			t.Errorf("%s is asked", r.URL)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("x\n")), Request: r}, nil
	})
	v, err := cluster.Gather(t.Context(), client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	complete, err := Write(t.Context(), client, v, Options{LogLimit: 1 << 20, Program: "/driver"}, &out)
	if err != nil || complete {
		t.Fatalf("%v, %v", complete, err)
	}
	files := read(t, &out)
	if files["pods/causeway-node-1/driver.log"] != "x\n" || files["pods/causeway-node-2/driver.log"] != "" {
		t.Errorf("%v", slices.Sorted(maps.Keys(files)))
	}
	for _, line := range []string{"logs of causeway-node-2: node node-2 is not ready\n", "logs of causeway-controller-6d-2: node node-2 is not ready\n",
		"ports of causeway-node-2: node node-2 is not ready\n"} {
		if !strings.Contains(files["MANIFEST"], line) {
			t.Errorf("%q is not in %s", line, files["MANIFEST"])
		}
	}
}

// silent are pods that accept connections and do not answer, except some paths.
type silent struct {
	cluster.Pods
	answers func(pod, path string) bool
	counter
}

func (s *silent) Get(ctx context.Context, p *corev1.Pod, port int32, path string) cluster.Answer {
	defer s.begin()()
	if s.answers(p.Name, path) {
		return s.Pods.Get(ctx, p, port, path)
	}
	<-ctx.Done()
	return cluster.Answer{Err: context.Cause(ctx)}
}

// The view has the answers of a few seconds ago: a pod that was silent then takes no more time.
func TestSilentPodsAreNotAskedAgain(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers func(pod, path string) bool
		asks    int
		takes   time.Duration
	}{
		{"all answer", func(string, string) bool { return true }, 8, 0},
		{"one is silent", func(pod, _ string) bool { return pod != "causeway-node-1" }, 6, 0},
		{"/metrics are silent", func(_, path string) bool { return path == "/readyz" }, 8, cluster.AskTimeout},
		{"all are silent", func(string, string) bool { return false }, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := fake.Healthy().Clients().Client
			pods := &silent{Pods: client.Pods, answers: tc.answers}
			client.Pods = pods
			v, err := cluster.Gather(t.Context(), client, cluster.Selection{})
			if err != nil {
				t.Fatal(err)
			}
			pods.total = 0
			start := time.Now()
			var out bytes.Buffer
			if _, err := Write(t.Context(), client, v, Options{LogLimit: 1 << 20, Program: "/driver"}, &out); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); pods.total != tc.asks || d != tc.takes {
				t.Errorf("%s: %d requests in %s, want %d in %s", tc.name, pods.total, d, tc.asks, tc.takes)
			}
			files := read(t, &out)
			for _, path := range []string{"/readyz", "/metrics"} {
				name := "pods/causeway-node-1/driver-http" + strings.ReplaceAll(path, "/", "-") + ".txt"
				answers, lack := tc.answers("causeway-node-1", path), name+": no answer within 15s"
				if (files[name] != "") != answers || strings.Contains(files["MANIFEST"], lack) == answers {
					t.Errorf("%s: %q, %s", tc.name, files[name], files["MANIFEST"])
				}
			}
		})
	}
}

// A tenant can make a Deployment with the labels of this project.
func TestNoNameLeavesTheDirectory(t *testing.T) {
	for _, name := range []string{"../../../x", "/etc/x", "a/b", "..", ".a", "a-", "", `a\b`, "a:b", strings.Repeat("a", 64), "a\nb"} {
		c := fake.Healthy()
		own := fake.Get[*appsv1.Deployment](c, "causeway-controller").DeepCopy()
		own.Namespace, own.Name = "tenant", "own"
		args := own.Spec.Template.Spec.Containers[0].Args
		for i := range args {
			if strings.HasPrefix(args[i], "--driver-name=") {
				args[i] = "--driver-name=" + name
			}
		}
		c.Add(own)
		files := write(t, c)
		if n := strings.Count(strings.Join(slices.Collect(maps.Keys(files)), " "), "records/"); n != 0 || name != "" && !strings.Contains(files["MANIFEST"], "own of namespace tenant") {
			t.Errorf("%q: %d, %s", name, n, files["MANIFEST"])
		}
	}
	c := fake.Healthy()
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, "{}")
		return err
	}
	clients := c.Clients()
	v, err := cluster.Gather(context.Background(), clients.Client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	v.Drivers[0].Name = "../../../x"
	var out bytes.Buffer
	if _, err := Write(context.Background(), clients.Client, v, Options{Program: "/driver"}, &out); err != nil {
		t.Fatal(err)
	}
	files := read(t, &out)
	if !strings.Contains(files["MANIFEST"], `file "../../x.json": invalid name`) {
		t.Errorf("%s", files["MANIFEST"])
	}
}

// TestThePageHasTheRights compares the kinds that need a right for the cluster with the page.
func TestThePageHasTheRights(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(fake.Root(), "docs", "how-to", "plugin.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Join(regexp.MustCompile("(?m)^\\| (`status`|`bundle`).*").FindAllString(string(page), -1), "\n")
	for _, c := range collections {
		if name := c.resource.Resource; c.of != installation && !regexp.MustCompile(`\b`+name+`\b`).MatchString(rows) {
			t.Errorf("docs/how-to/plugin.md does not have %s among the rights of bundle", name)
		}
	}
}
