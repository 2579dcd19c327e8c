// Package wire has the messages of a copy. A message is a binary WebSocket message, or a packet
// between the agent and its worker. Its first byte is the Kind.
//
// The receiver of a stream gets Data and Warning messages, then a Control message of the type End.
// Copy from a container: the client verifies the stream, puts it at its place and sends Ack; the
// last message is a Result. Copy to a container: the worker verifies the stream, puts it at its
// place and sends the Result. Either side may send Progress, or a Result with an error in place of
// any other message. A connection that ends before a Result without an error is a copy that has
// failed.
package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/causeway-csi/causeway/containercopy/archive"
)

// MaxMessage is the maximum size of a message in bytes, with its first byte. With the header of a
// WebSocket client, of 14 bytes (RFC 6455, 5.2), it fills 4 records of TLS: a rest of a few bytes
// would cost as many system calls as a record. A packet of 128 KiB would need 16 pages in a row.
const MaxMessage = 64<<10 - 14

// Subprotocol is the WebSocket subprotocol of a copy.
const Subprotocol = "v1alpha1.copy.causeway.dev"

// Kind is the first byte of a message.
type Kind byte

// Kinds of messages.
const (
	Data    Kind = iota // bytes of the tar stream
	Control             // a Message as JSON
	Warning             // a Note as JSON: an entry that is not copied
)

// Type is the type of a Control message.
type Type string

// Types of Control messages.
const (
	Progress Type = "progress" // Size is the number of bytes so far
	Sum      Type = "sum"      // Size, Entries and CRC32C of the stream that Start begins
	Start    Type = "start"    // begins a stream whose Sum was sent
	End      Type = "end"      // Size, Entries, CRC32C and perhaps SHA256 are those of the whole stream
	Ack      Type = "ack"      // the client has the copy at its place
	Result   Type = "result"   // the copy has ended: with success if Code is empty
)

// Message is a Control message.
type Message struct {
	Type    Type   `json:"type"`
	Size    int64  `json:"size,omitempty"` // bytes of the tar stream
	Entries int64  `json:"entries,omitempty"`
	CRC32C  uint32 `json:"crc32c,omitempty"`
	SHA256  string `json:"sha256,omitempty"` // hexadecimal
	Path    string `json:"path,omitempty"`   // at which the copy is, in the container
	Merged  bool   `json:"merged,omitempty"` // into an existing directory: not by one rename
	Code    Code   `json:"code,omitempty"`
	Text    string `json:"text,omitempty"` // of the error; after a success, of the rest that could not be removed
}

// Note is a Warning message.
type Note struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// EndOf returns the End message of a stream.
func EndOf(s archive.Sum, n archive.Counts) Message { return SumOf(End, s, n) }

// SumOf returns a message with the sum of a stream, of the type End or Sum.
func SumOf(t Type, s archive.Sum, n archive.Counts) Message {
	return Message{Type: t, Size: s.Size, Entries: n.Entries, CRC32C: s.CRC32C, SHA256: hex.EncodeToString(s.SHA256)}
}

// Sum returns the sum of an End or Sum message. Errors: ErrProtocol.
func (m Message) Sum() (archive.Sum, error) {
	s := archive.Sum{Size: m.Size, CRC32C: m.CRC32C}
	if m.SHA256 == "" {
		return s, nil
	}
	var err error
	if s.SHA256, err = hex.DecodeString(m.SHA256); err != nil || len(s.SHA256) != 32 {
		return s, fmt.Errorf("%w: the SHA-256 %.80q", ErrProtocol, m.SHA256)
	}
	return s, nil
}

// Code is the class of an error in a Result: the name of a gRPC code.
type Code string

// Codes of a Result.
const (
	InvalidArgument    Code = "INVALID_ARGUMENT"
	NotFound           Code = "NOT_FOUND"
	AlreadyExists      Code = "ALREADY_EXISTS"
	PermissionDenied   Code = "PERMISSION_DENIED"
	ResourceExhausted  Code = "RESOURCE_EXHAUSTED"
	FailedPrecondition Code = "FAILED_PRECONDITION"
	Aborted            Code = "ABORTED"
	OutOfRange         Code = "OUT_OF_RANGE" // more than a limit
	DataLoss           Code = "DATA_LOSS"
	Unimplemented      Code = "UNIMPLEMENTED"
	DeadlineExceeded   Code = "DEADLINE_EXCEEDED"
	Unavailable        Code = "UNAVAILABLE"
	Internal           Code = "INTERNAL"
)

// Failure is the error of a Result.
type Failure struct {
	Code Code
	Text string
}

func (f *Failure) Error() string { return f.Text }

// Err returns the Failure of a Result, or nil.
func (m Message) Err() error {
	if m.Type != Result || m.Code == "" {
		return nil
	}
	return &Failure{m.Code, m.Text}
}

// Errors of a Stream.
var (
	// ErrProtocol: a message that may not come now, or that cannot be read.
	ErrProtocol = errors.New("invalid message")
	// ErrNoResult: the connection ended before the Result, so the copy is not complete.
	ErrNoResult = errors.New("the connection ended before the result of the copy")
)

// Messages is a connection. Read and Write may be called at the same time, each by one goroutine.
type Messages interface {
	// Read returns the next message, which is valid until the next call. Errors: io.EOF at the end
	// of the connection.
	Read() ([]byte, error)
	// Write sends a message of at most MaxMessage bytes.
	Write(message []byte) error
}

// Stream sends and receives the messages of one copy. Several goroutines may send.
type Stream struct {
	messages Messages

	mu      sync.Mutex // of sending
	buffer  []byte     // of a message
	pending int        // bytes of the tar stream in buffer, behind the first byte
}

// NewStream returns a Stream over a connection.
func NewStream(m Messages) *Stream {
	return &Stream{messages: m, buffer: make([]byte, MaxMessage)}
}

// Write sends bytes of the tar stream.
func (s *Stream) Write(p []byte) (int, error) { return s.write(p, true) }

// Buffered returns a writer that sends bytes of the tar stream when they fill a message. Any other
// message sends the rest before it.
func (s *Stream) Buffered() io.Writer { return buffered{s} }

type buffered struct{ *Stream }

func (b buffered) Write(p []byte) (int, error) { return b.write(p, false) }

func (s *Stream) write(p []byte, all bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := 0
	for taken < len(p) {
		n := copy(s.buffer[1+s.pending:], p[taken:])
		s.pending += n
		taken += n
		if 1+s.pending < len(s.buffer) {
			break
		}
		if err := s.flush(); err != nil {
			return taken - n, err
		}
	}
	if all {
		return taken, s.flush()
	}
	return taken, nil
}

// flush sends the pending bytes. The caller holds mu.
func (s *Stream) flush() error {
	if s.pending == 0 {
		return nil
	}
	s.buffer[0] = byte(Data)
	n := s.pending
	s.pending = 0
	return s.messages.Write(s.buffer[:1+n])
}

// Send sends a Control message. A text that is too long for a message loses its middle.
func (s *Stream) Send(m Message) error {
	m.Text = shorten(m.Text)
	return s.send(Control, m)
}

// Warn sends a Warning message. A reason that is too long loses its middle.
func (s *Stream) Warn(n Note) error {
	n.Reason = shorten(n.Reason)
	return s.send(Warning, n)
}

// maxText is the maximum size of a text in bytes. As JSON it has at most 6 times as many.
const maxText = 8 << 10

// shorten returns a text of at most maxText bytes, which begins and ends as s does: an error names a
// path first, and its reason last.
func shorten(s string) string {
	const gap = " … "
	if len(s) <= maxText {
		return s
	}
	half := (maxText - len(gap)) / 2
	return strings.ToValidUTF8(s[:half], "") + gap + strings.ToValidUTF8(s[len(s)-half:], "")
}

func (s *Stream) send(k Kind, v any) error {
	text, err := json.Marshal(v)
	if err == nil && len(text) >= MaxMessage {
		err = fmt.Errorf("%w of %d bytes", ErrProtocol, len(text))
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.flush(); err != nil {
		return err
	}
	s.buffer[0] = byte(k)
	n := copy(s.buffer[1:], text)
	return s.messages.Write(s.buffer[:1+n])
}

// Received is a message that has arrived: Data, a Message or a Note, by its Kind.
type Received struct {
	Kind    Kind
	Data    []byte // valid until the next call of Receive
	Message Message
	Note    Note
}

// Receive returns the next message. Errors: ErrProtocol, ErrNoResult at the end of the connection.
func (s *Stream) Receive() (r Received, err error) {
	message, err := s.messages.Read()
	switch {
	case errors.Is(err, io.EOF):
		return r, ErrNoResult
	case err != nil:
		return r, fmt.Errorf("%w: %w", ErrNoResult, err)
	case len(message) == 0 || len(message) > MaxMessage:
		return r, fmt.Errorf("%w of %d bytes", ErrProtocol, len(message))
	}
	r.Kind = Kind(message[0])
	switch body := message[1:]; r.Kind {
	case Data:
		r.Data = body
	case Control:
		err = decode(body, &r.Message)
	case Warning:
		err = decode(body, &r.Note)
	default:
		err = fmt.Errorf("%w of the kind %d", ErrProtocol, r.Kind)
	}
	return r, err
}

func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// Body reads the tar stream of a copy.
type Body struct {
	stream *Stream
	warn   func(Note)
	rest   []byte
	end    *Message
	err    error
}

// Body returns the tar stream that arrives. It calls warn for the warnings in it, unless warn is
// nil. After io.EOF, End returns the End message.
func (s *Stream) Body(warn func(Note)) *Body { return &Body{stream: s, warn: warn} }

// Read reads from the tar stream. Errors: io.EOF after the End message; a Failure that the sender
// has sent; those of Receive.
func (b *Body) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if b.err == nil {
			b.err = b.next()
		}
		if b.err != nil {
			return 0, b.err
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// next receives the next bytes. Errors: those of Read.
func (b *Body) next() error {
	r, err := b.stream.Receive()
	switch {
	case err != nil:
		return err
	case r.Kind == Data:
		b.rest = r.Data
	case r.Kind == Warning:
		if b.warn != nil {
			b.warn(r.Note)
		}
	case r.Message.Type == Progress:
	case r.Message.Type == End:
		b.end = &r.Message
		return io.EOF
	case r.Message.Err() != nil:
		return r.Message.Err()
	default:
		return fmt.Errorf("%w: %q in the stream", ErrProtocol, r.Message.Type)
	}
	return nil
}

// End returns the End message. Errors: ErrProtocol before io.EOF.
func (b *Body) End() (Message, error) {
	if b.end == nil {
		return Message{}, fmt.Errorf("%w: the stream has not ended", ErrProtocol)
	}
	return *b.end, nil
}

// Await receives until a message of a type, or a Result with an error. It calls progress for the
// bytes of Progress messages, unless progress is nil.
func (s *Stream) Await(t Type, progress func(bytes int64)) (Message, error) {
	for {
		r, err := s.Receive()
		switch {
		case err != nil:
			return Message{}, err
		case r.Kind != Control:
			return Message{}, fmt.Errorf("%w of the kind %d, want %q", ErrProtocol, r.Kind, t)
		case r.Message.Err() != nil:
			return Message{}, r.Message.Err()
		case r.Message.Type == t:
			return r.Message, nil
		case r.Message.Type != Progress:
			return Message{}, fmt.Errorf("%w: %q, want %q", ErrProtocol, r.Message.Type, t)
		case progress != nil:
			progress(r.Message.Size)
		}
	}
}
