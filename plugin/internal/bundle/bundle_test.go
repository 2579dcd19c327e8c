package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/plugin/internal/cluster"
	"github.com/causeway-csi/causeway/plugin/internal/fake"
)

// marker is in every secret of the test.
const marker = "m4rk3rS3cr3t"

// write returns the files of an archive.
func write(t *testing.T, c *fake.Cluster) map[string]string {
	t.Helper()
	clients := c.Clients()
	v, err := cluster.Gather(context.Background(), clients.Client, cluster.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Write(context.Background(), clients.Client, v, Options{Version: "test", LogLimit: 1 << 20, Program: "/driver"}, &out); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(&out)
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
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "causeway-bundle/")] = string(data)
	}
}

func TestNoSecretIsInTheArchive(t *testing.T) {
	c := fake.Healthy()
	c.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "smb"},
		Data: map[string][]byte{"password": []byte(marker)}, StringData: map[string]string{"x": marker}})
	c.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fake.Namespace, Name: "shares",
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: `{"x":"` + marker + `"}`}},
		Data: map[string]string{"shares.yaml": "- source: //server/share\n  username: u\n  password: " + marker + "\n  other: 'kept-value'\n",
			"token": marker, "key.pem": "-----BEGIN EC PRIVATE KEY-----\n" + marker + "\n-----END EC PRIVATE KEY-----\n"}})
	p := fake.Get[*corev1.Pod](c, "causeway-node-1")
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "SMB_PASSWORD", Value: marker},
		corev1.EnvVar{Name: "URL", Value: "https://user:" + marker + "@server/x"}, corev1.EnvVar{Name: "KEPT", Value: "kept-env"})
	p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--smb-password="+marker, "--token", marker, `--json={"secret":"`+marker+`"}`)
	p.Status.ContainerStatuses[0].RestartCount = 1
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: fake.Driver, VolumeHandle: "h",
			VolumeAttributes: map[string]string{"password": marker}}}}}
	c.Add(volume)
	c.Answer("causeway-node-1", "driver", "/readyz", 503, "Authorization: Bearer "+marker+marker)
	c.Pods.OnExec = func(_, _ string, _ []string, out io.Writer) error {
		_, err := io.WriteString(out, `{"driver":"x","volumes":[],"note":"password=`+marker+`"}`)
		return err
	}
	c.Refuse["csidrivers"] = errors.New("forbidden: token=" + marker)
	c.Event("Pod", fake.Namespace, "causeway-node-1", "Failed", "password: "+marker)
	files := write(t, c)
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
		"forbidden", "causeway_volumes 3", "pv-1", "Not collected:", "fake logs"} {
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
	if strings.Contains(files["MANIFEST"], "secrets.yaml") || !strings.Contains(files["MANIFEST"], "csidrivers") {
		t.Errorf("%s", files["MANIFEST"])
	}
}

func TestSecretsInText(t *testing.T) {
	for in, want := range map[string]string{
		"Bearer abcdefghijkl":                    "Bearer REDACTED",
		`{"password": "a \" b","user":"u"}`:      `{"password": REDACTED,"user":"u"}`,
		`level=info password=abc user=u`:         `level=info password=REDACTED user=u`,
		"smb://u:pw@server/x":                    "smb://u:REDACTED@server/x",
		"token eyJhbGciOi.eyJzdWIi.c2ln":         "token REDACTED",
		"secretName: x":                          "secretName: x",
		"csi.storage.k8s.io/node-secret-name: x": "csi.storage.k8s.io/node-secret-name: x",
		`secret "causeway-nodes-tls" not found`:  `secret "causeway-nodes-tls" not found`,
		"-----BEGIN PRIVATE KEY-----\nabc\n":     "REDACTED",
		`msg="x" args="{\"password\":\"abc\"}"`:  `msg="x" args="{\"password\":REDACTED}"`,
	} {
		if got := text(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestTheEndOfALogIsKept(t *testing.T) {
	log := strings.Repeat("0123456789\n", 1000)
	data, cut, err := end(strings.NewReader(log+"last\n"), 100)
	if err != nil || !cut || len(data) > 100 || !strings.HasSuffix(string(data), "last\n") || !strings.HasPrefix(string(data), "0123456789\n") {
		t.Errorf("%q, %v, %v", data, cut, err)
	}
	if data, cut, err = end(strings.NewReader("a\nb\n"), 100); err != nil || cut || string(data) != "a\nb\n" {
		t.Errorf("%q, %v, %v", data, cut, err)
	}
}
