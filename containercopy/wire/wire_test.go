package wire

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/causeway-csi/causeway/containercopy/archive"
)

// queue is a connection in memory whose messages are read in the order of their writes.
type queue struct {
	messages [][]byte
	err      error // of Read after the last message; nil: io.EOF
	read     int
}

func (q *queue) Read() ([]byte, error) {
	if q.read == len(q.messages) {
		if q.err != nil {
			return nil, q.err
		}
		return nil, io.EOF
	}
	q.read++
	return q.messages[q.read-1], nil
}

func (q *queue) Write(m []byte) error {
	q.messages = append(q.messages, bytes.Clone(m))
	return nil
}

// TestBuffered fills messages, and sends the rest before any other message.
func TestBuffered(t *testing.T) {
	q := new(queue)
	s := NewStream(q)
	b := s.Buffered()
	content := bytes.Repeat([]byte("0123456789abcde"), MaxMessage/6) // two messages and a half
	for part := range slices.Chunk(content, 1000) {
		if n, err := b.Write(part); err != nil || n != len(part) {
			t.Fatal(n, err)
		}
	}
	if n := len(q.messages); n != 2 {
		t.Errorf("%d messages before a flush, want 2", n)
	}
	err := s.Warn(Note{"a", "b"})
	n, err2 := b.Write([]byte("rest"))
	_, err3 := s.Write([]byte(" of it"))
	if err := errors.Join(err, err2, err3, s.Send(Message{Type: End})); err != nil || n != 4 {
		t.Fatal(n, err)
	}
	var sizes []int
	for _, m := range q.messages {
		sizes = append(sizes, len(m))
	}
	want := []int{MaxMessage, MaxMessage, 1 + len(content) - 2*(MaxMessage-1), len(q.messages[3]), 1 + len("rest of it"), len(q.messages[5])}
	if len(sizes) != 6 || !slices.Equal(sizes, want) {
		t.Errorf("messages of %d bytes, want %d", sizes, want)
	}
	got, err := io.ReadAll(s.Body(nil))
	if err != nil || !bytes.Equal(got, append(content, "rest of it"...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestBufferedReportsTheError of an earlier part with the message that sends it.
func TestBufferedReportsTheError(t *testing.T) {
	s := NewStream(new(broken))
	if n, err := s.Buffered().Write([]byte("kept")); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if err := s.Send(Message{Type: End}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Send = %v", err)
	}
	if _, err := s.Buffered().Write(make([]byte, MaxMessage)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write = %v", err)
	}
}

// broken is a connection whose end is closed.
type broken struct{ queue }

func (*broken) Write([]byte) error { return io.ErrClosedPipe }

// TestAStream arrives as it was sent, in messages of at most MaxMessage bytes.
func TestAStream(t *testing.T) {
	q := new(queue)
	s := NewStream(q)
	content := bytes.Repeat([]byte("0123456789abcdef"), MaxMessage/5)
	sum := archive.Sum{Size: int64(len(content)), CRC32C: 7, SHA256: make([]byte, 32)}
	n, err := s.Write(content)
	err = errors.Join(err, s.Warn(Note{"a/b", "a device"}), s.Send(Message{Type: Progress, Size: 5}),
		s.Send(EndOf(sum, archive.Counts{Entries: 3})), s.Send(Message{Type: Progress, Size: 9}),
		s.Send(Message{Type: Result, Path: "/x"}))
	if err != nil || n != len(content) {
		t.Fatal(n, err)
	}
	for _, m := range q.messages {
		if len(m) > MaxMessage {
			t.Errorf("a message of %d bytes", len(m))
		}
	}
	var notes []Note
	body := s.Body(func(n Note) { notes = append(notes, n) })
	if m, err := body.End(); !errors.Is(err, ErrProtocol) {
		t.Errorf("End before the end = %+v, %v", m, err)
	}
	got, err := io.ReadAll(body)
	if err != nil || !bytes.Equal(got, content) || !slices.Equal(notes, []Note{{"a/b", "a device"}}) {
		t.Errorf("%d bytes, %v, notes %v", len(got), err, notes)
	}
	end, err := body.End()
	if err != nil || end.Entries != 3 {
		t.Errorf("End = %+v, %v", end, err)
	}
	if got, err := end.Sum(); err != nil || got.Check(sum) != nil || len(got.SHA256) != 32 {
		t.Errorf("Sum = %+v, %v", got, err)
	}
	var progress []int64
	result, err := s.Await(Result, func(n int64) { progress = append(progress, n) })
	if err != nil || result.Path != "/x" || !slices.Equal(progress, []int64{9}) {
		t.Errorf("Await = %+v, %v, progress %v", result, err, progress)
	}
	if _, err := s.Await(Result, nil); !errors.Is(err, ErrNoResult) {
		t.Errorf("after the last message: %v", err)
	}
	if n, err := body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read after the end = %d, %v", n, err)
	}
}

// TestAFailureEndsAStream: the receiver gets the class and the text of the sender.
func TestAFailureEndsAStream(t *testing.T) {
	failed := Message{Type: Result, Code: ResourceExhausted, Text: "too many copies in pod p"}
	for name, receive := range map[string]func(s *Stream) error{
		"in the stream": func(s *Stream) error {
			got, err := io.ReadAll(s.Body(nil))
			if string(got) != "part" {
				t.Errorf("got %q", got)
			}
			return err
		},
		"instead of a result": func(s *Stream) error {
			s.Receive()
			_, err := s.Await(Result, nil)
			return err
		},
		"instead of an ack": func(s *Stream) error {
			s.Receive()
			_, err := s.Await(Ack, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStream(new(queue))
			s.Write([]byte("part"))
			s.Send(failed)
			var f *Failure
			if err := receive(s); !errors.As(err, &f) || f.Code != ResourceExhausted || f.Text != failed.Text {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestWithoutAResult: a connection that ends early is an error, also after all bytes.
func TestWithoutAResult(t *testing.T) {
	cut := errors.New("connection reset")
	for _, end := range []error{nil, cut} {
		q := &queue{err: end}
		s := NewStream(q)
		s.Write([]byte("all of it"))
		if got, err := io.ReadAll(s.Body(nil)); !errors.Is(err, ErrNoResult) || end != nil && !errors.Is(err, cut) {
			t.Errorf("Read = %q, %v", got, err)
		}
		s.Send(Message{Type: Progress})
		if _, err := s.Await(Result, nil); !errors.Is(err, ErrNoResult) {
			t.Errorf("Await = %v", err)
		}
	}
}

func TestInvalidMessages(t *testing.T) {
	for name, message := range map[string]string{
		"empty": "", "an unknown kind": "\x07x", "no JSON": "\x01{", "a warning that is no JSON": "\x02x",
		"another type": "\x01" + `{"type":"ack"}`, "no type": "\x01{}", "a result without an error": "\x01" + `{"type":"result"}`,
		"too large": "\x00" + strings.Repeat("x", MaxMessage), "a size with a fraction": "\x01" + `{"type":"end","size":1.5}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStream(&queue{messages: [][]byte{[]byte(message)}})
			if got, err := io.ReadAll(s.Body(nil)); !errors.Is(err, ErrProtocol) || len(got) > 0 {
				t.Errorf("Read = %q, %v, want ErrProtocol", got, err)
			}
		})
	}
	for _, m := range []Message{{SHA256: "zz"}, {SHA256: "00"}} {
		if _, err := m.Sum(); !errors.Is(err, ErrProtocol) {
			t.Errorf("the sum of %+v: %v", m, err)
		}
	}
	s := NewStream(new(queue))
	s.Write([]byte("x"))
	if _, err := s.Await(Ack, nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("data instead of an ack: %v", err)
	}
	if err := s.Warn(Note{Path: strings.Repeat("x", MaxMessage)}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a note that is too large: %v", err)
	}
}

// TestMessagesOfV1alpha1: programs of different versions exchange these messages, so they do not
// change. A field that this version does not know is skipped; a type that it does not know is an
// error.
func TestMessagesOfV1alpha1(t *testing.T) {
	for text, message := range map[string]Message{
		`{"type":"progress","size":7}`:                                 {Type: Progress, Size: 7},
		`{"type":"sum","size":7,"entries":2,"crc32c":4294967295}`:      {Type: Sum, Size: 7, Entries: 2, CRC32C: 1<<32 - 1},
		`{"type":"start"}`:                                             {Type: Start},
		`{"type":"end","size":7,"entries":2,"crc32c":3,"sha256":"0f"}`: {Type: End, Size: 7, Entries: 2, CRC32C: 3, SHA256: "0f"},
		`{"type":"ack"}`:                                               {Type: Ack},
		`{"type":"result","path":"/a","merged":true}`:                  {Type: Result, Path: "/a", Merged: true},
		`{"type":"result","code":"ABORTED","text":"by a test"}`:        {Type: Result, Code: Aborted, Text: "by a test"},
	} {
		q := new(queue)
		if err := NewStream(q).Send(message); err != nil || string(q.messages[0]) != "\x01"+text {
			t.Errorf("%+v is sent as %q, %v", message, q.messages, err)
		}
		later := []byte("\x01" + strings.TrimSuffix(text, "}") + `,"later":{"x":[1]}}`)
		for _, m := range [][]byte{[]byte("\x01" + text), later} {
			r, err := NewStream(&queue{messages: [][]byte{m}}).Receive()
			if err != nil || r.Kind != Control || r.Message != message {
				t.Errorf("%q is received as %+v, %v", m, r, err)
			}
		}
	}
	q := new(queue)
	if err := NewStream(q).Warn(Note{"/a", "b"}); err != nil || string(q.messages[0]) != "\x02"+`{"path":"/a","reason":"b"}` {
		t.Errorf("a warning is sent as %q, %v", q.messages, err)
	}
	later := &queue{messages: [][]byte{[]byte("\x02" + `{"path":"/a","reason":"b","later":1}`)}}
	if r, err := NewStream(later).Receive(); err != nil || r.Note != (Note{"/a", "b"}) {
		t.Errorf("a warning is received as %+v, %v", r, err)
	}
	unknown := &queue{messages: [][]byte{[]byte("\x01" + `{"type":"later"}`)}}
	if _, err := NewStream(unknown).Await(Result, nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("an unknown type: %v", err)
	}
}

// FuzzReceive: no message makes a receiver panic, or is taken for the end of a stream that has
// none.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00data"), []byte("\x01"+`{"type":"end","size":4}`))
	f.Add([]byte("\x02"+`{"path":"a"}`), []byte("\x01"+`{"type":"result","code":"ABORTED"}`))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		s := NewStream(&queue{messages: [][]byte{one, two}})
		body := s.Body(func(Note) {})
		_, err := io.ReadAll(body)
		if end, e := body.End(); (err == nil) != (e == nil) || e == nil && end.Type != End {
			t.Errorf("Read = %v, End = %+v, %v", err, end, e)
		}
	})
}

// TestALongReason arrives, with its end.
func TestALongReason(t *testing.T) {
	q := new(queue)
	s := NewStream(q)
	reason := "open " + strings.Repeat("\x01é", 100_000) + ": permission denied"
	if err := errors.Join(s.Send(Message{Type: Result, Code: Internal, Text: reason}), s.Warn(Note{Path: "p", Reason: reason})); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := s.Receive()
		text := r.Message.Text + r.Note.Reason
		if err != nil || !strings.HasPrefix(text, "open ") || !strings.HasSuffix(text, "é: permission denied") || !utf8.ValidString(text) {
			t.Errorf("%.40q…%q, %v", text, text[max(0, len(text)-40):], err)
		}
	}
}
