package stream

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/causeway-csi/causeway/internal/await"
)

// counting counts the writes of a connection.
type counting struct {
	net.Conn
	writes atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// tlsPair returns the two ends of a connection of TLS, both with a Wide connection below, and the
// connection below the first.
func tlsPair(t *testing.T) (a, b *tls.Conn, below *counting) {
	t.Helper()
	front := httptest.NewTLSServer(nil)
	t.Cleanup(front.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := tls.NewListener(WideListener(l), &tls.Config{Certificates: front.TLS.Certificates}).Accept()
		accepted <- c
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	below = &counting{Conn: raw}
	a = tls.Client(NewWide(below), &tls.Config{InsecureSkipVerify: true})
	b, _ = (<-accepted).(*tls.Conn)
	if b == nil {
		t.Fatal("no connection")
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	deadline, _ := await.Context(t).Deadline()
	a.SetDeadline(deadline)
	b.SetDeadline(deadline)
	go b.Handshake()
	if err := a.Handshake(); err != nil {
		t.Fatal(err)
	}
	return a, b, below
}

// TestHeldRecordsAreOneWrite, also when another goroutine writes in between.
func TestHeldRecordsAreOneWrite(t *testing.T) {
	a, b, below := tlsPair(t)
	w := wideOf(a)
	content := make([]byte, 60_000)
	rand.Read(content)
	a.Write(content[:20_000]) // the size of records grows in the beginning
	a.Write(content[20_000:])
	if got, err := io.ReadAll(io.LimitReader(b, 60_000)); err != nil || !bytes.Equal(got, content) {
		t.Fatal(len(got), err)
	}
	for range 100 {
		a.Write(make([]byte, 2000))
	}
	io.CopyN(io.Discard, b, 200_000)
	before := below.writes.Load()
	w.holdWrites()
	if n, err := a.Write(content); n != len(content) || err != nil {
		t.Fatal(n, err)
	}
	if n := below.writes.Load() - before; n != 0 {
		t.Errorf("%d writes before flush", n)
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if n := below.writes.Load() - before; n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
	if got, err := io.ReadAll(io.LimitReader(b, 60_000)); err != nil || !bytes.Equal(got, content) {
		t.Error(len(got), err)
	}
	a.Write([]byte("x")) // is not held
	if n := below.writes.Load() - before; n != 2 {
		t.Errorf("%d writes, want 2", n)
	}
}

// TestPass passes a record at once, although no other follows, and a long stream as it was.
func TestPass(t *testing.T) {
	client, front, _ := tlsPair(t)
	up, agent, _ := tlsPair(t)
	ended := make(chan bool, 1)
	go func() {
		wrote, _ := Pass(up, front, time.Minute)
		ended <- wrote
	}()
	for _, size := range []int{1, 10, 16 << 10, 16<<10 + 1, 3 << 20} {
		content := make([]byte, size)
		rand.Read(content)
		go client.Write(content)
		got := make([]byte, size)
		if _, err := io.ReadFull(agent, got); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
	client.Close()
	if wrote := <-ended; wrote {
		t.Error("the end of the reader is an error of the writer")
	}
	agent.Close()
	front2, client2, _ := tlsPair(t)
	go func() {
		wrote, _ := Pass(up, front2, time.Minute)
		ended <- wrote
	}()
	for {
		if _, err := client2.Write(make([]byte, 1000)); err != nil {
			break
		}
		select {
		case wrote := <-ended:
			if !wrote {
				t.Error("an error of the writer is none")
			}
			return
		default:
		}
	}
	t.Error("no end")
}

// TestAPeerThatReadsNothing ends a stream, though the other peer and its data are there.
func TestAPeerThatReadsNothing(t *testing.T) {
	client, front, _ := tlsPair(t)
	up, _, _ := tlsPair(t)
	go func() {
		for {
			if _, err := client.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	if err := up.SetDeadline(time.Time{}); err != nil { // that of tlsPair would also end the write
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		wrote, err := Pass(up, front, time.Second)
		if !wrote {
			err = fmt.Errorf("an error of the reader: %w", err)
		}
		ended <- err
	}()
	err := await.Receive(t, "Pass ends, beside a peer that reads nothing", ended)
	if !errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(err.Error(), "reader") {
		t.Errorf("Pass = %v, want a write that exceeds its deadline", err)
	}
}

// TestOtherConnections have no Wide connection below.
func TestOtherConnections(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if w := wideOf(a); w != nil {
		t.Errorf("%v", w)
	}
	go a.Write([]byte("x"))
	c, d := net.Pipe()
	defer c.Close()
	defer d.Close()
	go Pass(c, b, time.Minute)
	if _, err := io.ReadFull(d, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}
