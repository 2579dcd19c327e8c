package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
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
	"github.com/causeway-csi/causeway/internal/await"
)

// server is a kube-apiserver whose container is the far side of a copy.
type server struct {
	mu       sync.Mutex
	refuse   func(w http.ResponseWriter) // nil: the copy begins
	serve    func(s *wire.Stream)
	requests []*http.Request
}

// set changes the answer to later requests.
func (s *server) set(serve func(s *wire.Stream), refuse func(w http.ResponseWriter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serve, s.refuse = serve, refuse
}

// last returns the last request. Nil: none.
func (s *server) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return nil
	}
	return s.requests[len(s.requests)-1]
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	refuse, serve := s.refuse, s.serve
	s.mu.Unlock()
	if refuse != nil {
		refuse(w)
		return
	}
	u := websocket.Upgrader{Subprotocols: []string{wire.Subprotocol}}
	conn, err := u.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	socket := stream.NewSocket(conn)
	defer socket.Close()
	serve(wire.NewStream(socket))
}

// refuses answers with a Status.
func refuses(status metav1.Status) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		status.TypeMeta, status.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		json.NewEncoder(w).Encode(status)
	}
}

// start serves the API, and makes a kubeconfig for it the default, whose path it returns.
func (s *server) start(t *testing.T) string {
	t.Helper()
	front := httptest.NewTLSServer(s)
	t.Cleanup(front.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	dir := t.TempDir()
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
"users":[{"name":"u","user":{"token":"secret"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"ours"}},
{"name":"plain","context":{"cluster":"c","user":"u"}}]}`, front.URL+"/prefix", filepath.Join(dir, "ca"))
	for name, content := range map[string]string{"ca": string(ca), "config": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(dir, "config"))
	return filepath.Join(dir, "config")
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
		result := wire.SumOf(wire.Result, r.sum, archive.Counts{Entries: int64(len(r.names))})
		result.Path = "/there"
		s.Send(result)
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
	code := run(await.Context(t), args, streams{strings.NewReader(in), &out, &text})
	return outcome{code, out.String(), text.String()}
}

// nothing fails if a directory has any file.
func nothing(t *testing.T, dir string) {
	t.Helper()
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestFlagsOfTheConfiguration: those of kubectl select the server, the user and the namespace.
func TestFlagsOfTheConfiguration(t *testing.T) {
	s := &server{serve: sends(t, entry{"f", "content"})}
	config := s.start(t)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if got := copying(t, "", "p:/f", "-"); got.code != 1 {
		t.Errorf("without a kubeconfig: %+v", got)
	}
	for namespace, args := range map[string][]string{"ours": {}, "default": {"--context=plain"}, "flag": {"-n", "flag"}} {
		args = append(args, "--kubeconfig="+config, "--as=other", "--token=stronger", "p:/f", "-")
		got := copying(t, "", args...)
		r := s.last()
		if got.code != 0 || r == nil || r.URL.Path != "/prefix"+options.URLPath(options.From, namespace, "p") ||
			r.Header.Get("Impersonate-User") != "other" || r.Header.Get("Authorization") != "Bearer stronger" {
			t.Errorf("%q: %+v, %+v", args, got, r)
		}
	}
	if got := copying(t, "", "--kubeconfig="+config, "--context=none", "p:/f", "-"); got.code != 1 || !strings.Contains(got.err, "none") {
		t.Errorf("an unknown context: %+v", got)
	}
}

// TestAFile: a file keeps its name in a directory, and gets that of the destination elsewhere.
func TestAFile(t *testing.T) {
	s := &server{serve: sends(t, entry{"f", "content"})}
	s.start(t)
	dir := t.TempDir()
	for _, to := range []string{dir + "/new", dir, dir + "/"} {
		if got := copying(t, "", "--overwrite=files", "p:/f", to); got.code != 0 || !strings.HasSuffix(got.err, "\n1 entry, 2048 bytes of tar (2.0 KiB)\n") {
			t.Errorf("%s: %+v", to, got)
		}
	}
	for _, name := range []string{"new", "f"} {
		if content, err := os.ReadFile(filepath.Join(dir, name)); string(content) != "content" {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
	if got := copying(t, "", "p:/f", dir); got.code != 1 || !strings.HasSuffix(got.err, "--overwrite=files replaces files\n") {
		t.Errorf("an existing file: %+v", got)
	}
	if got := copying(t, "", "p:/f", dir+"/f"); got.code != 1 || !strings.HasSuffix(got.err, "--overwrite=files replaces files\n") {
		t.Errorf("an existing file, before the request: %+v", got)
	}
	var r received
	s.set(keeps(t, &r), nil)
	if got := copying(t, "", dir+"/f", "other/p:/x"); got.code != 0 || strings.Join(r.names, " ") != "f" || r.sum.Check(r.end) != nil ||
		got.err != "1 entry, 2048 bytes of tar (2.0 KiB)\n" {
		t.Errorf("%+v, %+v", got, r)
	}
	if want := "checksum=" + strconv.Itoa(int(r.sum.CRC32C)) + "&overwrite=never&path=%2Fx&size=2048"; s.last().URL.RawQuery != want {
		t.Errorf("the query: %s, want %s", s.last().URL.RawQuery, want)
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
	if strings.ContainsRune(got.err, '\x1b') || !strings.Contains(got.err, `warning: "dev\x1b[2J": a device`) {
		t.Errorf("the warning: %q", got.err)
	}
	first := s.last()
	if first.URL.Path != "/prefix"+options.URLPath(options.From, "ours", "p") || first.Header.Get("Authorization") != "Bearer secret" ||
		first.URL.RawQuery != "container=main&path=%2Fa+b%2Fd&sha256=true" {
		t.Errorf("the request: %+v", first)
	}
	if got = copying(t, "", "other/p:/d/.", dir+"/contents"); got.code != 0 || s.last().URL.Query().Get("path") != "/d/" ||
		!strings.Contains(s.last().URL.Path, "/namespaces/other/") {
		t.Errorf("%+v, %+v", got, s.last())
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
	if err := o.Parse(s.last().URL.Query()); err != nil {
		t.Fatal(err)
	}
	if o.Path != "/x" || *o.Size != r.sum.Size || *o.Checksum != r.sum.CRC32C || o.SHA256 != hex.EncodeToString(r.sum.SHA256) ||
		o.Overwrite != "tree" || !o.PreserveMode || !o.PreserveTimes || !o.PreserveOwner || o.Contents {
		t.Errorf("the request: %+v", o)
	}
	if got = copying(t, "", dir+"/.", "p:/x"); got.code != 0 || s.last().URL.Query().Get("contents") != "true" || s.last().URL.Query().Has("sha256") {
		t.Errorf("contents: %+v, %v", got, s.last().URL.Query())
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "f", Size: 0, Typeflag: tar.TypeReg})
	w.Close()
	if got = copying(t, b.String(), "-", "p:/x"); got.code != 0 || strings.Join(r.names, " ") != "f" || s.last().URL.Query().Has("size") {
		t.Errorf("standard input: %+v, %+v, %v", got, r, s.last().URL.Query())
	}
}

// TestRefusals: the message of the API is printed once, and the exit code depends on its reason.
func TestRefusals(t *testing.T) {
	plain := func(code int, text string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) { http.Error(w, text, code) }
	}
	long := strings.Repeat("a long message \"", 100)
	s := &server{}
	s.start(t)
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		refuse func(w http.ResponseWriter)
		code   int
		text   string
	}{
		"forbidden": {refuses(metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `pods "p" is forbidden: no exec`,
			Details: &metav1.StatusDetails{Kind: "pods", Name: "p"}}), 1, `pods "p" is forbidden: no exec`},
		"forbidden by kube-apiserver": {refuses(metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no right",
			Details: &metav1.StatusDetails{Group: "copy.causeway.dev", Kind: "podcopiesfrom", Name: "p"}}), 1, "no right: the ClusterRoles of container copy have this right, if it is installed"},
		"control characters":   {refuses(metav1.Status{Code: 500, Message: "no \x1b[1m right"}), 1, `"no \x1b[1m right"`},
		"busy":                 {refuses(metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests, Message: "try again later"}), 75, "try again later"},
		"busy, kube-apiserver": {plain(429, "Too many requests, please try again later."), 75, "Too many requests, please try again later."},
		"no API":               {plain(404, "404 page not found"), 1, errNoAPI.Error() + " (404 page not found)"},
		"no resource":          {refuses(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: notServed}), 1, errNoAPI.Error() + " (" + notServed + ")"},
		"not available":        {plain(503, "service unavailable"), 1, errNoAPI.Error() + " (service unavailable)"},
		"no pod": {refuses(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: `pods "p" not found`,
			Details: &metav1.StatusDetails{Name: "p", Kind: "pods"}}), 1, `pods "p" not found`},
		"no file":        {refuses(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "/x: no such file or directory"}), 1, "/x: no such file or directory"},
		"no agent":       {refuses(metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "node n has no agent"}), 1, "node n has no agent"},
		"no text":        {func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }, 1, "the server returned 502 Bad Gateway"},
		"no WebSocket":   {func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }, 1, "the server returned 200 OK"},
		"a long message": {refuses(metav1.Status{Code: 429, Message: long}), 75, long[:500]},
	} {
		t.Run(name, func(t *testing.T) {
			s.set(nil, tc.refuse)
			got := copying(t, "", "p:/x", dir+"/x")
			if name == "a long message" {
				if got.code != 75 || !strings.HasPrefix(got.err, "kubectl copy: "+tc.text) {
					t.Errorf("%+v", got)
				}
				return
			}
			if want := (outcome{tc.code, "", "kubectl copy: " + tc.text + "\n"}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
	nothing(t, dir)
}

// TestErrorsOfTheContainer: nothing is at the destination after an error in the middle, and no
// control character of the container is on the terminal.
func TestErrorsOfTheContainer(t *testing.T) {
	s := &server{}
	s.start(t)
	dir, source := t.TempDir(), filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(source, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	fails := func(code wire.Code, text string) func(s *wire.Stream) {
		return func(s *wire.Stream) { s.Send(wire.Message{Type: wire.Result, Code: code, Text: text}) }
	}
	for name, tc := range map[string]struct {
		serve func(s *wire.Stream)
		code  int
		words string
		args  []string // "": a copy from the container
	}{
		"end of the connection": {half, 1, "connection ended", nil},
		"no entry":              {sends(t), 1, "no entry", nil},
		"failure":               {fails(wire.NotFound, "no such file"), 1, "kubectl copy: no such file\n", nil},
		"full disk":             {fails(wire.ResourceExhausted, "no space left"), 1, "kubectl copy: no space left\n", nil},
		"control characters":    {fails(wire.Internal, "a\x1b]0;b\a"), 1, `kubectl copy: "a\x1b]0;b\a"`, nil},
		"a name with a control": {sends(t, entry{"../\x1b[2J", "x"}), 1, `x1b[2J`, nil},
		"wrong checksum": {func(s *wire.Stream) {
			w := tar.NewWriter(s)
			w.WriteHeader(&tar.Header{Name: "f", Size: 0, Typeflag: tar.TypeReg})
			w.Close()
			s.Send(wire.EndOf(archive.Sum{Size: 1536, CRC32C: 1}, archive.Counts{Entries: 1}))
			s.Await(wire.Ack, nil)
		}, 1, "CRC-32C", nil},
		"an escape": {sends(t, entry{"../f", "x"}), 1, "refused", nil},

		"to: end of the connection": {func(s *wire.Stream) { s.Receive() }, 1, "", []string{source, "p:/x"}},
		"to: failure":               {fails(wire.PermissionDenied, "uid 1 may not write"), 1, "kubectl copy: uid 1 may not write\n", []string{source, "p:/x"}},
		"to: full disk":             {fails(wire.ResourceExhausted, "no space left"), 1, "no space left", []string{source, "p:/x"}},
		"output: end":               {half, 1, "connection ended", []string{"p:/x", "-"}},
	} {
		t.Run(name, func(t *testing.T) {
			s.set(tc.serve, nil)
			args := tc.args
			if args == nil {
				args = []string{"p:/x", dir + "/x"}
			}
			got := copying(t, "", args...)
			if got.code != tc.code || !strings.Contains(got.err, tc.words) || strings.Contains(got.err, "\x1b") {
				t.Errorf("%+v, want %d with %q", got, tc.code, tc.words)
			}
			nothing(t, dir)
		})
	}
}

// half sends the first half of a file.
func half(s *wire.Stream) {
	w := tar.NewWriter(s)
	w.WriteHeader(&tar.Header{Name: "f", Size: 2 << 20, Mode: 0o600, Typeflag: tar.TypeReg})
	w.Write(make([]byte, 1<<20))
}

// waiting is a standard stream that waits, or the far side of a copy that does.
type waiting struct {
	end   <-chan struct{}
	there chan struct{} // a value: it waits
}

func newWaiting(end <-chan struct{}) waiting { return waiting{end, make(chan struct{}, 1)} }

func (w waiting) wait() {
	select {
	case w.there <- struct{}{}:
	default:
	}
	<-w.end
}

func (w waiting) Read([]byte) (int, error)    { w.wait(); return 0, io.EOF }
func (w waiting) Write(p []byte) (int, error) { w.wait(); return len(p), nil }

// unfinished returns the files of unfinished copies.
func unfinished(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, ".kcopy*", "f"))
	return names
}

// TestAStall: --timeout and a signal end a copy whose far side, or whose standard stream, waits.
// The unfinished copy is removed.
func TestAStall(t *testing.T) {
	end := make(chan struct{})
	s := &server{}
	s.start(t)
	t.Cleanup(func() { close(end) }) // before the server is closed, which waits for its requests
	dir, large := t.TempDir(), filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	stalls := func(_ waiting, s *wire.Stream) { half(s); <-end }
	const result = "the result"
	for name, tc := range map[string]struct {
		serve func(w waiting, s *wire.Stream) // nil: the handshake waits
		args  []string
	}{
		"from":      {stalls, []string{"p:/x", dir + "/x"}},
		"to":        {func(w waiting, _ *wire.Stream) { w.wait() }, []string{large, "p:/x"}},
		"output":    {stalls, []string{"p:/x", "-"}},
		"input":     {func(_ waiting, s *wire.Stream) { s.Await(wire.Result, nil) }, []string{"-", "p:/x"}},
		"handshake": {nil, []string{"p:/x", dir + "/x"}},
		result: {func(w waiting, s *wire.Stream) {
			if _, err := io.Copy(io.Discard, s.Body(nil)); err == nil {
				w.wait()
			}
		}, []string{large, "p:/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func() waiting {
				w := newWaiting(end)
				var refuse func(http.ResponseWriter)
				if tc.serve == nil {
					refuse = func(http.ResponseWriter) { w.wait() }
				}
				s.set(func(s *wire.Stream) { tc.serve(w, s) }, refuse)
				return w
			}
			unknown := map[bool]string{true: "the copy may be at its place: "}[name == result]
			for limit := time.Second; ; limit *= 2 {
				std := begin()
				var text bytes.Buffer
				args := append([]string{"--timeout=" + limit.String()}, tc.args...)
				code := run(await.Context(t), args, streams{std, std, &text})
				over := fmt.Sprintf("the copy takes longer than %s\n", limit)
				if name == result && code == 1 && text.String() == "kubectl copy: "+over {
					continue // the client had not sent everything yet
				}
				if code != 1 || text.String() != "kubectl copy: "+unknown+over {
					t.Errorf("--timeout: %d, %q", code, &text)
				}
				break
			}
			nothing(t, dir)
			ctx, cancel := context.WithCancelCause(t.Context())
			std, code := begin(), make(chan int, 1)
			var text bytes.Buffer
			go func() { code <- run(ctx, tc.args, streams{std, std, &text}) }()
			if name == "from" {
				await.True(t, "an unfinished copy is there", func() bool { return len(unfinished(dir)) > 0 })
			} else {
				await.Receive(t, "the copy waits", std.there)
			}
			cancel(errors.New("a signal")) // as signal.NotifyContext does
			if code := <-code; code != 1 || text.String() != "kubectl copy: "+unknown+"a signal\n" {
				t.Errorf("a signal: %d, %q", code, &text)
			}
			nothing(t, dir)
		})
	}
	s.set(func(s *wire.Stream) {
		s.Send(wire.Message{Type: wire.Result, Code: wire.Aborted, Text: "the pod is deleted"})
	}, nil)
	var text bytes.Buffer // an error of the container does not wait for input
	if code := run(t.Context(), []string{"-", "p:/x"}, streams{newWaiting(end), io.Discard, &text}); code != 1 ||
		text.String() != "kubectl copy: the pod is deleted\n" {
		t.Errorf("%d, %q", code, &text)
	}
}

func TestUsage(t *testing.T) {
	s := &server{refuse: func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }}
	s.start(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for words, args := range map[string][]string{
		"0 arguments": {}, `--overwrite "f"`: {"--overwrite", "f", "p:/x"}, "1 arguments": {"a"}, "neither": {"a", "b"}, "both paths": {"p:/a", "q:/b"},
		`"relative" in pod p must be absolute`: {"p:relative", "x"}, "3 arguments": {"p:/a", "x", "y"}, "empty": {"p:/a", ""},
		`--checksum "md5"`: {"--checksum=md5", "p:/a", "x"}, `--overwrite "yes"`: {"--overwrite=yes", "p:/a", "x"},
		`--preserve "xattrs"`: {"--preserve=mode,xattrs", "p:/a", "x"}, `--links "none"`: {"--links=none", "p:/a", "x"},
		`--progress "bar"`: {"--progress=bar", "p:/a", "x"}, "--timeout -1s": {"--timeout=-1s", "p:/a", "x"},
		`"soon"`: {"--timeout=soon", "p:/a", "x"}, "--nonsense": {"--nonsense", "p:/a", "x"},
		`"b" and "a" differ`: {"-n", "a", "b/p:/a", "x"}, `--namespace "a/b"`: {"-n", "a/b", "p:/a", "x"},
		`is no pod`: {"\x1b[2J:/a", "x"}, "none: ": {dir + "/none", "p:/x"}, "/none/x does not exist": {"p:/x", dir + "/none/x"},
		"file/": {file + "/", "p:/x"}, "file/x": {"p:/x", file + "/x"},
	} {
		if got := copying(t, "", args...); got.code != 2 || !strings.HasPrefix(got.err, "kubectl copy: ") || got.out != "" ||
			!strings.Contains(got.err, words) || strings.Count(got.err, "\n") != 1 || strings.Contains(got.err, "\x1b") {
			t.Errorf("%q: %+v, want %s", args, got, words)
		}
	}
	if r := s.last(); r != nil {
		t.Errorf("a request: %+v", r)
	}
	if got := copying(t, "", "--version"); got != (outcome{0, "dev\n", ""}) {
		t.Errorf("--version: %+v", got)
	}
	got := copying(t, "", "-h")
	for _, flag := range []string{"-n, --namespace", "-c, --container", "--checksum", "--preserve", "--overwrite", "--links", "--timeout",
		"--progress", "--version", "--kubeconfig", "--context"} {
		if got.code != 0 || got.err != "" || !strings.Contains(got.out, flag) {
			t.Errorf("-h has no %s: %+v", flag, got)
		}
	}
}

// TestATerminal gets no stream, and shows the progress.
func TestATerminal(t *testing.T) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil || !isTerminal(f) {
		t.Skip("no terminal: ", err)
	}
	defer f.Close()
	for _, args := range [][]string{{"p:/x", "-"}, {"-", "p:/x"}} {
		var text bytes.Buffer
		if code := run(t.Context(), args, streams{f, f, &text}); code != 2 || !strings.Contains(text.String(), "is a terminal") {
			t.Errorf("%q: %d, %q", args, code, &text)
		}
	}
	r := newReport(f, "auto")
	defer close(r.ended)
	if !r.rewrite || r.every != 200*time.Millisecond {
		t.Errorf("%+v", r)
	}
}

// TestReport: the lines of progress, and the end.
func TestReport(t *testing.T) {
	var b bytes.Buffer
	r := newReport(&b, "plain")
	r.line(time.Now())
	r.begin("sent")
	r.note(6 << 20)
	r.line(r.start.Add(6 * time.Second))
	r.rewrite = true
	for _, n := range []int64{6 << 20, 6} {
		r.note(n)
		r.line(r.start.Add(time.Second))
	}
	r.warn("\u202egpj", "a\xff")
	r.end(client.Result{Entries: 3, Sum: archive.Sum{Size: 1023, SHA256: []byte{1, 255}}}, true, nil)
	r.line(time.Now())
	const want = "sent 6.0 MiB, 1.0 MiB/s\n" + "\rsent 6.0 MiB, 6.0 MiB/s\rsent 6 B, 6 B/s        \n" +
		`kubectl copy: warning: "\u202egpj": "a\xff"` + "\n3 entries, 1023 bytes of tar, SHA-256 of the tar 01ff\n"
	if got := b.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, progress := range []string{"auto", "none"} { // b is no terminal
		if r := newReport(&b, progress); r.every != 0 {
			t.Errorf("%s: %+v", progress, r)
		}
	}
}
