package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/causeway-csi/causeway/containercopy/archive"
	"github.com/causeway-csi/causeway/containercopy/internal/pipe"
	"github.com/causeway-csi/causeway/containercopy/place"
	"github.com/causeway-csi/causeway/containercopy/wire"
	waits "github.com/causeway-csi/causeway/internal/await"
)

func options() Options { return Options{Limits: archive.DefaultLimits(), SHA256: true} }

// write makes files: "name=content".
func write(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		name, content, _ := strings.Cut(f, "=")
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// files returns the files below a directory in the form of write.
func files(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all = append(all, filepath.ToSlash(name)+"="+string(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// container is the far side of a copy: it keeps a stream, or sends one.
type container struct {
	*wire.Stream
	end    pipe.End
	result chan error
}

// newContainer runs the far side of a copy, and returns the stream of the client.
func newContainer(t *testing.T, run func(s *wire.Stream) error) (client *wire.Stream, c *container) {
	t.Helper()
	near, far := pipe.New()
	c = &container{wire.NewStream(far), far, make(chan error, 1)}
	var group sync.WaitGroup
	group.Go(func() {
		c.result <- run(c.Stream)
		far.Close()
	})
	t.Cleanup(func() {
		near.Close()
		group.Wait()
	})
	return wire.NewStream(near), c
}

// sends returns a far side that sends a source, with a change of its End message.
func sends(t *testing.T, source string, change func(m *wire.Message)) func(s *wire.Stream) error {
	return func(s *wire.Stream) error {
		l, err := OpenSource(context.Background(), source, options())
		if err != nil {
			t.Error(err)
			return err
		}
		if _, _, err := l.pack(context.Background(), s, options()); err != nil {
			return err
		}
		end := wire.EndOf(l.Sum, archive.Counts{Entries: l.Entries})
		change(&end)
		if err := errors.Join(s.Warn(wire.Note{Path: "x", Reason: "a device"}), s.Send(end)); err != nil {
			return err
		}
		if _, err := s.Await(wire.Ack, nil); err != nil {
			return err
		}
		return s.Send(wire.Message{Type: wire.Result})
	}
}

func unchanged(*wire.Message) {}

// TestReceive: the destinations of a copy from a container, and its errors, after which nothing is
// left.
func TestReceive(t *testing.T) {
	source := filepath.Join(t.TempDir(), "s")
	write(t, source, "f=1", "g/h=2")
	for name, tc := range map[string]struct {
		source   string
		before   []string
		to       string
		contents bool
		change   func(m *wire.Message)
		want     string
		err      error
	}{
		"a directory, new":           {source, nil, "new", false, unchanged, "new/f=1 new/g/h=2", nil},
		"a directory into one":       {source, []string{"d/x=1"}, "d", false, unchanged, "d/s/f=1 d/s/g/h=2 d/x=1", nil},
		"contents into one":          {source, []string{"d/x=1"}, "d/", true, unchanged, "d/f=1 d/g/h=2 d/x=1", nil},
		"a file, new":                {source + "/f", nil, "new", false, unchanged, "new=1", nil},
		"a file to a missing parent": {source + "/f", nil, "none/new", false, unchanged, "", fs.ErrNotExist},
		"a file with a slash":        {source + "/f", nil, "new/", false, unchanged, "", fs.ErrNotExist},
		"a file over a file":         {source + "/f", []string{"f=old"}, ".", false, unchanged, "f=old", place.ErrExists},
		"checksum":                   {source, nil, "new", false, func(m *wire.Message) { m.CRC32C++ }, "", archive.ErrDamaged},
		"size":                       {source, nil, "new", false, func(m *wire.Message) { m.Size-- }, "", archive.ErrDamaged},
		"SHA-256":                    {source, nil, "new", false, func(m *wire.Message) { m.SHA256 = strings.Repeat("ab", 32) }, "", archive.ErrDamaged},
		"no SHA-256":                 {source, nil, "new", false, func(m *wire.Message) { m.SHA256 = "" }, "", wire.ErrProtocol},
		"no end":                     {source, nil, "new", false, func(m *wire.Message) { *m = wire.Message{Type: wire.Ack} }, "", wire.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tc.before...)
			s, c := newContainer(t, sends(t, tc.source, tc.change))
			o := options()
			var warned []string
			o.Warn = func(path, reason string) { warned = append(warned, path+": "+reason) }
			var progress int64
			o.Progress = func(n int64) { progress = n }
			to := filepath.Join(dir, tc.to)
			if strings.HasSuffix(tc.to, "/") {
				to += "/"
			}
			r, err := Receive(t.Context(), s, to, tc.contents, o)
			if !errors.Is(err, tc.err) || files(t, dir) != tc.want {
				t.Errorf("Receive = %+v, %v, files %q, want %q, %v", r, err, files(t, dir), tc.want, tc.err)
			}
			if names, _ := filepath.Glob(filepath.Join(dir, ".kcopy*")); len(names) > 0 {
				t.Errorf("left: %q", names)
			}
			if err == nil && (<-c.result != nil || progress != r.Sum.Size || !slices.Equal(warned, []string{"x: a device"})) {
				t.Errorf("progress %d of %d, warnings %q", progress, r.Sum.Size, warned)
			}
		})
	}
}

// TestAClientReadsDuringItsCommit: a connection answers pings only then.
func TestAClientReadsDuringItsCommit(t *testing.T) {
	source, took := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	write(t, source, "f=1")
	commit = func(d place.Destination, s *place.Staging, top string, o place.Overwrite) (bool, error) {
		waits.Receive(t, "the client reads before the end of its commit", took)
		return d.Commit(s, top, o)
	}
	t.Cleanup(func() { commit = place.Destination.Commit })
	s, c := newContainer(t, func(s *wire.Stream) error {
		digest := archive.NewDigest(true)
		e, err := archive.OpenLocal(source)
		if err != nil {
			return err
		}
		defer e.Close()
		n, err := archive.Pack(context.Background(), io.MultiWriter(s, digest), "s", e, archive.PackOptions{Limits: archive.DefaultLimits()})
		if err == nil {
			err = s.Send(wire.EndOf(digest.Sum(), n))
		}
		for i := 0; i < 1000 && err == nil; i++ { // more than the connection holds
			err = s.Send(wire.Message{Type: wire.Progress})
		}
		close(took)
		if err == nil {
			_, err = s.Await(wire.Ack, nil)
		}
		return errors.Join(err, s.Send(wire.Message{Type: wire.Result}))
	})
	dir := t.TempDir()
	if r, err := Receive(t.Context(), s, filepath.Join(dir, "new"), false, options()); err != nil || files(t, dir) != "new/f=1" {
		t.Errorf("Receive = %+v, %v, files %q", r, err, files(t, dir))
	}
	if err := <-c.result; err != nil {
		t.Error(err)
	}
}

// TestAParentBehindALink: ".." is the parent of the target of a link, as for all programs.
func TestAParentBehindALink(t *testing.T) {
	dir, source := t.TempDir(), filepath.Join(t.TempDir(), "s")
	write(t, source, "f=1")
	write(t, dir, "far/target/x=1")
	if err := os.Symlink(filepath.Join(dir, "far", "target"), filepath.Join(dir, "link")); err != nil {
		t.Skip(err)
	}
	s, _ := newContainer(t, sends(t, filepath.Join(source, "f"), unchanged))
	to := dir + string(filepath.Separator) + "link" + string(filepath.Separator) + ".." + string(filepath.Separator) + "new"
	if r, err := Receive(t.Context(), s, to, false, options()); err != nil {
		t.Errorf("Receive = %+v, %v", r, err)
	}
	if got := files(t, filepath.Join(dir, "far")); got != "new=1 target/x=1" {
		t.Errorf("got %q", got)
	}
}

// TestAConnectionThatEnds during a copy from a container leaves nothing.
func TestAConnectionThatEnds(t *testing.T) {
	dir := t.TempDir()
	s, _ := newContainer(t, func(s *wire.Stream) error {
		_, err := s.Write(make([]byte, 100))
		return err
	})
	if r, err := Receive(t.Context(), s, filepath.Join(dir, "new"), false, options()); !errors.Is(err, wire.ErrNoResult) {
		t.Errorf("Receive = %+v, %v, want ErrNoResult", r, err)
	}
	if entries, err := os.ReadDir(dir); len(entries) > 0 || err != nil {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// receives is a far side that unpacks a stream.
func receives(t *testing.T, dir string, change func(m *wire.Message)) func(s *wire.Stream) error {
	return func(s *wire.Stream) error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Error(err)
			return err
		}
		defer root.Close()
		body, digest := s.Body(nil), archive.NewDigest(true)
		_, err = archive.Unpack(context.Background(), io.TeeReader(body, digest), root, archive.UnpackOptions{Limits: archive.DefaultLimits()})
		if err == nil {
			err = verify(body, digest, false)
		}
		if err != nil {
			return err
		}
		result := wire.SumOf(wire.Result, digest.Sum(), archive.Counts{})
		result.Path = "/there"
		change(&result)
		return errors.Join(s.Send(wire.Message{Type: wire.Progress, Size: 5}), s.Send(result))
	}
}

func TestSend(t *testing.T) {
	source := filepath.Join(t.TempDir(), "s")
	write(t, source, "f=1", "g/h=2")
	for name, path := range map[string]string{"s": source, "contents": source + "/.", "f": source + "/f"} {
		t.Run(name, func(t *testing.T) {
			l, err := OpenSource(t.Context(), path, options())
			if err != nil || l.Contents != (name == "contents") || l.Sum.Size == 0 {
				t.Fatalf("OpenSource = %+v, %v", l, err)
			}
			dir := t.TempDir()
			s, c := newContainer(t, receives(t, dir, unchanged))
			r, err := l.Send(t.Context(), s, options())
			if err != nil || r.Path != "/there" || r.Sum.Check(l.Sum) != nil || r.Entries != l.Entries {
				t.Errorf("Send = %+v, %v", r, err)
			}
			want := map[string]string{"s": "s/f=1 s/g/h=2", "contents": "s/f=1 s/g/h=2", "f": "f=1"}[name]
			if got := files(t, dir); got != want || <-c.result != nil {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	for name, path := range map[string]string{"none": source + "/none", "a file with a slash": source + "/f/"} {
		if l, err := OpenSource(t.Context(), path, options()); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// TestTheResultOfTheContainer: an agent that has not verified the SHA-256 is an error, and a rest
// that could not be removed is not.
func TestTheResultOfTheContainer(t *testing.T) {
	source := filepath.Join(t.TempDir(), "s")
	write(t, source, "f=1")
	for name, tc := range map[string]struct {
		change func(m *wire.Message)
		sha256 bool
		want   error
		warned string
	}{
		"no SHA-256":             {func(m *wire.Message) { m.SHA256 = "" }, true, wire.ErrProtocol, ""},
		"another SHA-256":        {func(m *wire.Message) { m.SHA256 = strings.Repeat("ab", 32) }, true, archive.ErrDamaged, ""},
		"no SHA-256, not wanted": {func(m *wire.Message) { m.SHA256 = "" }, false, nil, ""},
		"a rest":                 {func(m *wire.Message) { m.Text = "left" }, true, nil, "/there: left"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			o.SHA256 = tc.sha256
			var warned string
			o.Warn = func(path, reason string) { warned = path + ": " + reason }
			l, err := OpenSource(t.Context(), source, o)
			if err != nil {
				t.Fatal(err)
			}
			s, _ := newContainer(t, receives(t, t.TempDir(), func(m *wire.Message) { tc.change(m); m.Merged = true }))
			r, err := l.Send(t.Context(), s, o)
			if !errors.Is(err, tc.want) || warned != tc.warned || r.Merged != (err == nil) {
				t.Errorf("Send = %+v, %v, warning %q", r, err, warned)
			}
		})
	}
}

// TestASourceThatChanges since its checksum was in the request is no copy.
func TestASourceThatChanges(t *testing.T) {
	source := filepath.Join(t.TempDir(), "s")
	write(t, source, "f=1")
	l, err := OpenSource(t.Context(), source, options())
	if err != nil {
		t.Fatal(err)
	}
	write(t, source, "f=2")
	s, c := newContainer(t, receives(t, t.TempDir(), unchanged))
	if r, err := l.Send(t.Context(), s, options()); !errors.Is(err, archive.ErrChanged) {
		t.Errorf("Send = %+v, %v, want ErrChanged", r, err)
	}
	var f *wire.Failure
	if err := <-c.result; !errors.As(err, &f) || f.Code != wire.Aborted {
		t.Errorf("the container gets %v", err)
	}
}

// TestAFailureOfTheContainer ends a copy to it, also in the middle.
func TestAFailureOfTheContainer(t *testing.T) {
	source := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(source, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := OpenSource(t.Context(), source, options())
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newContainer(t, func(s *wire.Stream) error {
		s.Receive()
		return s.Send(wire.Message{Type: wire.Result, Code: wire.PermissionDenied, Text: "uid 1000 may not write"})
	})
	var f *wire.Failure
	if r, err := l.Send(t.Context(), s, options()); !errors.As(err, &f) || f.Code != wire.PermissionDenied {
		t.Errorf("Send = %+v, %v, want PERMISSION_DENIED", r, err)
	}
}

// TestStreams: standard input and output have the tar stream itself.
func TestStreams(t *testing.T) {
	source := filepath.Join(t.TempDir(), "s")
	write(t, source, "f=1")
	s, c := newContainer(t, sends(t, source, unchanged))
	var out bytes.Buffer
	r, err := ReceiveStream(t.Context(), s, &out, options())
	if err != nil || int64(out.Len()) != r.Sum.Size || <-c.result != nil {
		t.Fatalf("ReceiveStream = %+v, %v", r, err)
	}
	dir := t.TempDir()
	s, c = newContainer(t, receives(t, dir, unchanged))
	sent, err := SendStream(t.Context(), &out, s, options())
	if err != nil || sent.Sum.Check(r.Sum) != nil || files(t, dir) != "s/f=1" || <-c.result != nil {
		t.Errorf("SendStream = %+v, %v, files %q", sent, err, files(t, dir))
	}
	s, _ = newContainer(t, sends(t, source, func(m *wire.Message) { m.Size++ }))
	if r, err := ReceiveStream(t.Context(), s, io.Discard, options()); !errors.Is(err, archive.ErrDamaged) {
		t.Errorf("a wrong size: %+v, %v", r, err)
	}
}

// TestASourceThatWaits: the end of the far side ends a copy whose source has no data.
func TestASourceThatWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		message wire.Message
		words   string
	}{
		"a failure": {wire.Message{Type: wire.Result, Code: wire.Unavailable, Text: "the agent ends"}, "the agent ends"},
		"a result":  {wire.Message{Type: wire.Result}, "before the end of the stream"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newContainer(t, func(s *wire.Stream) error { return s.Send(tc.message) })
			r, w := io.Pipe()
			defer w.Close()
			if _, err := SendStream(t.Context(), r, s, options()); err == nil || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("SendStream = %v, want %q", err, tc.words)
			}
		})
	}
}

// waiting is a writer that waits, such as a pipe whose reader has stopped.
type waiting struct{ begun, end chan struct{} }

func (w waiting) Write(p []byte) (int, error) {
	close(w.begun)
	<-w.end
	return len(p), nil
}

// TestADestinationThatWaits does not delay the end of a copy.
func TestADestinationThatWaits(t *testing.T) {
	w := waiting{make(chan struct{}), make(chan struct{})}
	defer close(w.end)
	s, _ := newContainer(t, func(s *wire.Stream) error { _, err := s.Write(make([]byte, 100)); return err })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-w.begun
		cancel()
	}()
	if r, err := ReceiveStream(ctx, s, w, options()); !errors.Is(err, context.Canceled) {
		t.Errorf("ReceiveStream = %+v, %v, want Canceled", r, err)
	}
}
