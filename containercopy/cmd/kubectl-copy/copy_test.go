package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/client"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// server is a kube-apiserver whose container is the far side of a copy.
type server struct {
	status *metav1.Status // of a refusal; nil: the copy begins
	serve  func(s *wire.Stream)

	mu    sync.Mutex
	paths []string
	query url.Values
	auth  string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.paths, s.query, s.auth = append(s.paths, r.URL.Path), r.URL.Query(), r.Header.Get("Authorization")
	s.mu.Unlock()
	if s.status != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(s.status.Code))
		json.NewEncoder(w).Encode(s.status)
		return
	}
	u := websocket.Upgrader{Subprotocols: []string{wire.Subprotocol}}
	conn, err := u.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	socket := stream.NewSocket(conn)
	defer socket.Close()
	s.serve(wire.NewStream(socket))
}

// start serves the API, and makes a kubeconfig for it the default.
func (s *server) start(t *testing.T) {
	t.Helper()
	front := httptest.NewTLSServer(s)
	t.Cleanup(front.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	dir := t.TempDir()
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
"users":[{"name":"u","user":{"token":"secret"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"ours"}}]}`, front.URL+"/prefix", filepath.Join(dir, "ca"))
	for name, content := range map[string]string{"ca": string(ca), "config": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(dir, "config"))
}

// entry is a file or a directory of a stream.
type entry struct{ name, content string }

// sends sends a stream, with a warning.
func sends(t *testing.T, entries ...entry) func(s *wire.Stream) {
	return func(s *wire.Stream) {
		digest := archive.NewDigest(true)
		s.Warn(wire.Note{Path: "dev\x1b[2J", Reason: "a device"})
		w := tar.NewWriter(io.MultiWriter(s, digest))
		for _, e := range entries {
			h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
			if strings.HasSuffix(e.name, "/") {
				h.Typeflag, h.Mode = tar.TypeDir, 0o755
			}
			w.WriteHeader(h)
			io.WriteString(w, e.content)
		}
		w.Close()
		s.Send(wire.EndOf(digest.Sum(), archive.Counts{Entries: int64(len(entries))}))
		if _, err := s.Await(wire.Ack, nil); err == nil {
			s.Send(wire.Message{Type: wire.Result, Entries: int64(len(entries))})
		}
	}
}

// received is a stream that has arrived.
type received struct {
	names []string
	sum   archive.Sum
	end   archive.Sum
}

// keeps receives a stream.
func keeps(t *testing.T, r *received) func(s *wire.Stream) {
	return func(s *wire.Stream) {
		digest, body := archive.NewDigest(true), s.Body(nil)
		all, err := io.ReadAll(io.TeeReader(body, digest))
		if err != nil {
			return
		}
		for tr := tar.NewReader(bytes.NewReader(all)); ; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			r.names = append(r.names, h.Name)
		}
		r.sum = digest.Sum()
		end, _ := body.End()
		r.end, _ = end.Sum()
		s.Send(wire.Message{Type: wire.Result, Entries: int64(len(r.names)), Path: "/there"})
	}
}

// outcome is the end of a command.
type outcome struct {
	code     int
	out, err string
}

func copying(t *testing.T, in string, args ...string) outcome {
	t.Helper()
	var out, text bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code := run(ctx, args, streams{strings.NewReader(in), &out, &text})
	return outcome{code, out.String(), text.String()}
}

// nothing fails if a directory has any file.
func nothing(t *testing.T, dir string) {
	t.Helper()
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

func TestFromAContainer(t *testing.T) {
	s := &server{serve: sends(t, entry{"d/", ""}, entry{"d/f", "content"})}
	s.start(t)
	dir := t.TempDir()
	got := copying(t, "", "--checksum=sha256", "-c", "main", "p:/a b/d", dir+"/new")
	if got.code != 0 || !strings.Contains(got.err, "2 entries") || !strings.Contains(got.err, "SHA-256") {
		t.Fatalf("%+v", got)
	}
	if content, err := os.ReadFile(dir + "/new/f"); string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	if strings.ContainsRune(got.err, '\x1b') || !strings.Contains(got.err, `skipped "dev\x1b[2J": a device`) {
		t.Errorf("the warning: %q", got.err)
	}
	if s.paths[0] != "/prefix"+options.URLPath(options.From, "ours", "p") || s.auth != "Bearer secret" ||
		s.query.Encode() != "container=main&path=%2Fa+b%2Fd&sha256=true" {
		t.Errorf("the request: %v %v %q", s.paths, s.query, s.auth)
	}
	if got = copying(t, "", "other/p:/d/.", dir+"/contents"); got.code != 0 || s.query.Get("path") != "/d/" ||
		!strings.Contains(s.paths[1], "/namespaces/other/") {
		t.Errorf("%+v, %v %v", got, s.paths, s.query)
	}
	if got = copying(t, "", "p:/d", "-"); got.code != 0 || !strings.Contains(got.out, "content") {
		t.Errorf("to standard output: %+v", got)
	}
	if got = copying(t, "", "p:/d", dir+"/new"); got.code != 0 { // into the directory, as docker cp does
		t.Errorf("into a directory: %+v", got)
	}
	if got = copying(t, "", "p:/d", dir+"/new"); got.code != 1 || !strings.Contains(got.err, "exist") {
		t.Errorf("a second time: %+v", got)
	}
	if got = copying(t, "", "--overwrite=files", "p:/d", dir+"/new"); got.code != 0 {
		t.Errorf("with --overwrite: %+v", got)
	}
}

func TestToAContainer(t *testing.T) {
	var r received
	s := &server{}
	s.serve = func(stream *wire.Stream) { r = received{}; keeps(t, &r)(stream) }
	s.start(t)
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(dir+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/d/f", []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := copying(t, "", "--checksum=sha256", "--overwrite=tree", "--preserve=mode,times,owner", dir, "p:/x")
	if got.code != 0 || strings.Join(r.names, " ") != "tree/ tree/d/ tree/d/f" || r.sum.Check(r.end) != nil {
		t.Fatalf("%+v, %+v", got, r)
	}
	var o options.PodCopyToOptions
	if err := o.Parse(s.query); err != nil {
		t.Fatal(err)
	}
	if o.Path != "/x" || *o.Size != r.sum.Size || *o.Checksum != r.sum.CRC32C || o.SHA256 != hex.EncodeToString(r.sum.SHA256) ||
		o.Overwrite != "tree" || !o.PreserveMode || !o.PreserveTimes || !o.PreserveOwner || o.Contents {
		t.Errorf("the request: %+v", o)
	}
	if got = copying(t, "", dir+"/.", "p:/x"); got.code != 0 || s.query.Get("contents") != "true" || s.query.Has("sha256") {
		t.Errorf("contents: %+v, %v", got, s.query)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "f", Size: 0, Typeflag: tar.TypeReg})
	w.Close()
	if got = copying(t, b.String(), "-", "p:/x"); got.code != 0 || strings.Join(r.names, " ") != "f" || s.query.Has("size") {
		t.Errorf("standard input: %+v, %+v, %v", got, r, s.query)
	}
}

// TestRefusals: the message of the API is printed once, and the exit code depends on its reason.
func TestRefusals(t *testing.T) {
	s := &server{}
	s.start(t)
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		status metav1.Status
		code   int
		text   string
	}{
		"forbidden": {metav1.Status{Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no \x1b[1m right"}, 1, `kubectl copy: "no \x1b[1m right"` + "\n"},
		"busy":      {metav1.Status{Status: "Failure", Code: 429, Reason: metav1.StatusReasonTooManyRequests, Message: "try again later"}, 75, "kubectl copy: try again later\n"},
		"no API": {metav1.Status{Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{}}, 1,
			"kubectl copy: " + errNoAPI.Error() + " (the server could not find the requested resource)\n"},
		"no pod": {metav1.Status{Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound, Message: `pods "p" not found`, Details: &metav1.StatusDetails{Name: "p", Kind: "pods"}}, 1, "kubectl copy: pods \"p\" not found\n"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			s.status = &tc.status
			if got := copying(t, "", "p:/x", dir+"/x"); got != (outcome{tc.code, "", tc.text}) {
				t.Errorf("%+v, want %d %q", got, tc.code, tc.text)
			}
		})
	}
	nothing(t, dir)
}

// TestErrorsOfTheContainer: nothing is at the destination after an error in the middle.
func TestErrorsOfTheContainer(t *testing.T) {
	s := &server{}
	s.start(t)
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		serve func(s *wire.Stream)
		code  int
		words string
	}{
		"end of the connection": {func(s *wire.Stream) { s.Write(make([]byte, 100)) }, 1, "connection ended"},
		"failure": {func(s *wire.Stream) {
			s.Send(wire.Message{Type: wire.Result, Code: wire.NotFound, Text: "no such file"})
		}, 1, "no such file"},
		"busy": {func(s *wire.Stream) {
			s.Send(wire.Message{Type: wire.Result, Code: wire.ResourceExhausted, Text: "try again later"})
		}, 75, "try again later"},
		"wrong checksum": {func(s *wire.Stream) {
			w := tar.NewWriter(s)
			w.WriteHeader(&tar.Header{Name: "f", Size: 0, Typeflag: tar.TypeReg})
			w.Close()
			s.Send(wire.EndOf(archive.Sum{Size: 1536, CRC32C: 1}, archive.Counts{Entries: 1}))
			s.Await(wire.Ack, nil)
		}, 1, ""},
		"an escape": {sends(t, entry{"../f", "x"}), 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s.serve = tc.serve
			if got := copying(t, "", "p:/x", dir+"/x"); got.code != tc.code || !strings.Contains(got.err, tc.words) {
				t.Errorf("%+v, want %d with %q", got, tc.code, tc.words)
			}
			nothing(t, dir)
		})
	}
}

// TestAStall: --timeout and a signal end a copy whose far side sends and reads nothing.
func TestAStall(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	s := &server{serve: func(*wire.Stream) { <-end }}
	s.start(t)
	dir, large := t.TempDir(), filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	silent, w := io.Pipe() // a terminal on which nothing is typed
	defer w.Close()
	for _, args := range [][]string{{"p:/x", dir + "/x"}, {large, "p:/x"}, {"p:/x", "-"}, {"-", "p:/x"}} {
		var text bytes.Buffer
		if code := run(t.Context(), append([]string{"--timeout=300ms"}, args...), streams{silent, io.Discard, &text}); code != 1 || !strings.Contains(text.String(), "takes longer than 300ms") {
			t.Errorf("%q: %d, %s", args, code, &text)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel) // as a signal does
		text.Reset()
		if code := run(ctx, args, streams{silent, io.Discard, &text}); code != 1 || !strings.Contains(text.String(), "canceled") {
			t.Errorf("%q: %d, %s", args, code, &text)
		}
		nothing(t, dir)
	}
}

func TestUsage(t *testing.T) {
	s := &server{status: &metav1.Status{Code: 500}}
	s.start(t)
	for _, args := range [][]string{
		{}, {"a"}, {"a", "b"}, {"p:/a", "q:/b"}, {"p:relative", "x"}, {"p:/a", "x", "y"}, {"p:/a", ""}, {"--checksum=md5", "p:/a", "x"},
		{"--overwrite=yes", "p:/a", "x"}, {"--preserve=xattrs", "p:/a", "x"}, {"--links=none", "p:/a", "x"}, {"--progress=bar", "p:/a", "x"},
		{"--timeout=-1s", "p:/a", "x"}, {"--nonsense", "p:/a", "x"}, {"-n", "a", "b/p:/a", "x"},
	} {
		if got := copying(t, "", args...); got.code != 2 || !strings.HasPrefix(got.err, "kubectl copy: usage: ") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	for _, args := range [][]string{{"/none/at/all", "p:/x"}, {"p:/x", "/none/at/all"}} { // before the request
		if got := copying(t, "", args...); got.code != 1 || !strings.Contains(got.err, "/none/at") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if len(s.paths) > 0 {
		t.Errorf("requests: %q", s.paths)
	}
	if got := copying(t, "", "--version"); got != (outcome{0, "dev\n", ""}) {
		t.Errorf("--version: %+v", got)
	}
	if got := copying(t, "", "-h"); got.code != 0 || !strings.Contains(got.err, "--overwrite") {
		t.Errorf("-h: %+v", got)
	}
}

// TestReport: the lines of progress.
func TestReport(t *testing.T) {
	var b bytes.Buffer
	r := newReport(&b, "plain")
	r.note(1)
	if b.Len() > 0 {
		t.Errorf("at once: %q", b.String())
	}
	r.start, r.last = r.start.Add(-6*time.Second), r.last.Add(-6*time.Second)
	r.note(6 << 20)
	if got := b.String(); !strings.HasPrefix(got, "6.0 MiB, ") || !strings.HasSuffix(got, "/s \n") {
		t.Errorf("%q", got)
	}
	b.Reset()
	r = newReport(&b, "auto") // no terminal
	r.start, r.last = r.start.Add(-6*time.Second), r.last.Add(-6*time.Second)
	r.note(6 << 20)
	r.end(client.Result{Entries: 3, Sum: archive.Sum{Size: 1023}}, false, nil)
	if got := b.String(); got != "3 entries, 1023 B\n" {
		t.Errorf("%q", got)
	}
}
