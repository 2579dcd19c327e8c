package outages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/deploy/images/oci"
	"github.com/causeway-csi/causeway/internal/smbtest"
	"github.com/causeway-csi/causeway/test/cluster/chart"
	"github.com/causeway-csi/causeway/test/cluster/local"
	"github.com/causeway-csi/causeway/test/cluster/outages/records"
	"github.com/causeway-csi/causeway/test/cluster/shares"
)

// namespace is that of the writers.
const namespace = "writers"

// image is that of the writers.
const image = "example.com/causeway/writer:v1"

// patience is the limit for an expected event. It is no measure: guests are slow.
const patience = 6 * time.Minute

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
	before             string // the log of earlier lives
}

// event is a line of a writer's log.
type event struct {
	what   string // opened, durable, failed
	record int64
	at     time.Time
	err    string
}

// loadWriter builds the image of the writers, and gives it to the nodes.
func (s *scene) loadWriter() {
	s.Helper()
	dir := s.TempDir()
	program := filepath.Join(dir, "writer")
	cmd := exec.Command("go", "build", "-o", program, "./outages/writer")
	cmd.Dir = filepath.Join(chart.Sources(), "test", "cluster")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("build the writer: %v: %s", err, out)
	}
	content, err := os.ReadFile(program)
	s.must(err)
	tar := filepath.Join(dir, "writer.tar")
	_, err = oci.Write(tar, image, oci.Image{Platform: "linux/" + runtime.GOARCH,
		Layers: [][]oci.File{{{Path: "/writer", Mode: 0o755, Content: content}}}, Entrypoint: []string{"/writer"}})
	s.must(err)
	s.must(cluster.Load(s.Context(), tar))
}

// begin creates the writer's claim and pod.
func (s *scene) begin(w *writer) {
	s.Helper()
	s.must(kube.Apply(s.anyhow(), fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[5]s}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: %[2]s
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[3]s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: writer
    image: %[4]s
    args: [/volume/records]
    volumeMounts: [{name: volume, mountPath: /volume}]
  volumes: [{name: volume, persistentVolumeClaim: {claimName: %[5]s}}]
`, w.name, w.class, w.node.Name, image, w.claim), "--namespace="+namespace))
	s.await(w)
}

// await waits until the pod of a writer is ready.
func (s *scene) await(w *writer) {
	s.Helper()
	s.until(w.name+" to be ready", func() error {
		return s.is("True", "pod", w.name, `{.status.conditions[?(@.type=="Ready")].status}`)
	})
	w.life = s.get("pod", w.name, "{.metadata.uid}")
}

// end deletes the writer's pod. Its claim stays.
func (s *scene) end(w *writer) {
	s.Helper()
	w.before += s.log(w)
	s.kubectl("delete", "pod", w.name, "--wait", "--timeout="+patience.String())
}

// log returns the log of the writer's pod.
func (s *scene) log(w *writer) string {
	s.Helper()
	out := ""
	s.until("the log of "+w.name, func() (err error) {
		out, err = kube.Run(s.anyhow(), "--namespace="+namespace, "logs", w.name)
		return err
	})
	return out
}

// events returns the events of all lives of a writer. A life must not begin before the last durable
// record of an earlier one.
func (s *scene) events(w *writer) (all []event) {
	s.Helper()
	durable := int64(-1)
	for line := range strings.Lines(w.before + s.log(w)) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(fields) != 4 {
			s.Fatalf("%s printed %q", w.name, line)
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		ms, err2 := strconv.ParseInt(fields[2], 10, 64)
		s.must(errors.Join(err, err2))
		e := event{fields[0], n, time.UnixMilli(ms), fields[3]}
		switch e.what {
		case "opened":
			if e.record <= durable {
				s.Errorf("%s: %d records are left of %d that were durable", w.name, e.record, durable+1)
			}
		case "durable":
			durable = e.record
		case "failed":
			durable = max(durable, e.record-1)
		}
		all = append(all, e)
	}
	return all
}

// last returns the last durable record.
func last(all []event) int64 {
	n := int64(-1)
	for _, e := range all {
		switch e.what {
		case "durable":
			n = e.record
		case "failed":
			n = max(n, e.record-1)
		}
	}
	return n
}

// verify compares the durable records of a writer with the file on the server's disk.
func (s *scene) verify(w *writer, all []event) {
	s.Helper()
	content, err := os.ReadFile(filepath.Join(s.directory(w), "records"))
	s.must(err)
	if err := records.Check(content, last(all)); err != nil {
		s.Errorf("%s: %v", w.name, err)
	}
}

// directory returns the directory of a writer's volume on the server's disk.
func (s *scene) directory(w *writer) string {
	s.Helper()
	volume := s.get("pvc", w.claim, "{.spec.volumeName}")
	return filepath.Join(shares.Directory(s.server), strings.TrimSuffix(volume, "-causeway"))
}

// row describes an outage for a writer.
type row struct {
	errors  []string      // of its calls, each once
	silence time.Duration // the longest time without a durable record
	failing time.Duration // the longest time in which all calls failed
}

// saw returns the row of a writer since a time. A durable record is printed every second or so, and
// after an error.
func saw(all []event, since time.Time) (r row) {
	durable, failed := since, time.Time{}
	for _, e := range all {
		if e.at.Before(since) {
			continue
		}
		switch e.what {
		case "failed":
			failed = e.at
			if text := e.err[strings.LastIndex(e.err, ": ")+1:]; !strings.Contains(strings.Join(r.errors, ","), text) {
				r.errors = append(r.errors, strings.TrimSpace(text))
			}
		case "durable":
			r.silence = max(r.silence, e.at.Sub(durable))
			if !failed.IsZero() {
				r.failing = max(r.failing, e.at.Sub(failed))
			}
			durable, failed = e.at, time.Time{}
		}
	}
	return r
}

// writes waits until a writer has a durable record that is newer than a time.
func (s *scene) writes(w *writer, since time.Time) []event {
	s.Helper()
	var all []event
	s.until(w.name+" to write", func() error {
		all = s.events(w)
		for _, e := range all {
			if e.what == "durable" && e.at.After(since) {
				return nil
			}
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

// until waits for an event.
func (s *scene) until(what string, so func() error) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		err := so()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("not after %v: %s: %v", patience, what, err)
		}
	}
}
