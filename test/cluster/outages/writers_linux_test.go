package outages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/internal/await"
	"github.com/causeway-csi/causeway/internal/gobuild"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/internal/livetest"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/outages/records"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// namespace is that of the writers.
const namespace = "writers"

// image is that of the writers.
const image = "example.com/causeway/writer:v1"

// logs is the directory of the writers' logs, on a disk of the node: they outlive the pods.
const logs = "/var/lib/kubelet/writers"

// scene is a cluster with writers.
type scene struct {
	*testing.T
	server  *smbtest.Server
	writers []*writer
}

// writer is a pod that writes to a volume of its own.
type writer struct {
	name, claim, class string
	node               local.Node
	life               string // UID of the pod
}

// loadWriter builds the image of the writers, and gives it to the nodes.
func (s *scene) loadWriter() {
	s.Helper()
	dir := s.TempDir()
	program := filepath.Join(dir, "writer")
	p := gobuild.Program{Package: "./outages/writer", Dir: filepath.Join(chart.Sources(), "test", "cluster")}
	s.must(p.Copy(s.Context(), program))
	content, err := os.ReadFile(program)
	s.must(err)
	tar := filepath.Join(dir, "writer.tar")
	_, err = oci.Write(tar, image, oci.Image{Platform: "linux/" + runtime.GOARCH,
		Layers: [][]oci.File{{{Path: "/writer", Mode: 0o755, Content: content}}}, Entrypoint: []string{"/writer"}})
	s.must(err)
	s.must(cluster.Load(s.Context(), tar))
}

// claim returns a claim of a volume that many pods can write to.
func claim(name, class string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: %s
  resources: {requests: {storage: 1Gi}}
`, name, class)
}

// begin creates the writer's claim and pod.
func (s *scene) begin(w *writer) {
	s.Helper()
	s.must(kube.Apply(s.anyhow(), claim(w.claim, w.class)+fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: writer
    image: %[3]s
    args: [/volume/records, /logs/%[1]s]
    volumeMounts: [{name: volume, mountPath: /volume}, {name: logs, mountPath: /logs}]
  volumes:
  - {name: volume, persistentVolumeClaim: {claimName: %[4]s}}
  - {name: logs, hostPath: {path: %[5]s, type: DirectoryOrCreate}}
`, w.name, w.node.Name, image, w.claim, logs), "--namespace="+namespace))
	s.awaitReady(w)
}

// awaitReady waits until the pod of a writer is ready, and notes its UID.
func (s *scene) awaitReady(w *writer) {
	s.Helper()
	await.NoError(s, w.name+" is ready", func() error {
		return s.is("True", "pod", w.name, `{.status.conditions[?(@.type=="Ready")].status}`)
	})
	w.life = s.get("pod", w.name, "{.metadata.uid}")
}

// end deletes the writer's pod. Its claim stays.
func (s *scene) end(w *writer) {
	s.Helper()
	s.kubectl("delete", "pod", w.name, "--wait", "--timeout="+livetest.Patience.String())
}

// events returns the events of all lives of a writer, on all guests.
func (s *scene) events(w *writer) []records.Event {
	s.Helper()
	var log strings.Builder
	for _, n := range guests {
		out, err := n.Run(s.anyhow(), "sh", "-c", "test ! -e "+logs+"/"+w.name+" || cat "+logs+"/"+w.name)
		s.must(err)
		log.WriteString(out)
	}
	all, err := records.Parse(log.String())
	if err != nil {
		s.Fatalf("%s: %v", w.name, err)
	}
	return all
}

// verify compares the durable records of a writer with the file on the server's disk.
func (s *scene) verify(w *writer, all []records.Event) {
	s.Helper()
	last := records.Last(all)
	if last < 0 {
		s.Errorf("%s has no durable record", w.name)
	}
	content, err := os.ReadFile(filepath.Join(s.directory(w), "records"))
	s.must(err)
	if err := records.Check(content, last); err != nil {
		s.Errorf("%s: %v", w.name, err)
	}
}

// directory returns the directory of a writer's volume on the server's disk.
func (s *scene) directory(w *writer) string {
	s.Helper()
	volume := s.get("pvc", w.claim, "{.spec.volumeName}")
	return filepath.Join(shares.Directory(s.server), strings.TrimSuffix(volume, "-causeway"))
}

// writes waits until a writer has a durable record that is newer than a time.
func (s *scene) writes(w *writer, since time.Time) (all []records.Event) {
	s.Helper()
	await.NoError(s, w.name+" writes", func() error {
		all = s.events(w)
		for _, e := range slices.Backward(all) {
			if e.Kind == records.Durable && e.At.After(since) {
				return nil
			}
		}
		if len(all) == 0 {
			return errors.New("it has no event")
		}
		return fmt.Errorf("its last event is %+v", all[len(all)-1])
	})
	return all
}

// stays checks that the pod of a writer is the same, and was not restarted.
func (s *scene) stays(w *writer) {
	s.Helper()
	if got := s.get("pod", w.name, "{.metadata.uid} {.status.containerStatuses[0].restartCount}"); got != w.life+" 0" {
		s.Errorf("the UID and the restarts of %s are %q, want %q", w.name, got, w.life+" 0")
	}
}

func (s *scene) anyhow() context.Context { return context.WithoutCancel(s.Context()) }

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) kubectl(args ...string) string {
	s.Helper()
	out, err := kube.Run(s.anyhow(), append([]string{"--namespace=" + namespace}, args...)...)
	s.must(err)
	return strings.TrimSpace(out)
}

// get returns a field of an object, by a JSONPath.
func (s *scene) get(kind, name, path string) string {
	s.Helper()
	return s.kubectl("get", kind, name, "-o", "jsonpath="+path)
}

func (s *scene) is(want, kind, name, path string) error {
	out, err := kube.Run(s.anyhow(), "--namespace="+namespace, "get", kind, name, "-o", "jsonpath="+path)
	if err == nil && out != want {
		err = fmt.Errorf("%q, want %q", out, want)
	}
	return err
}
