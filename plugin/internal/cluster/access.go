package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// maxBody is the largest body of an answer, in bytes. The metrics of a router with 4,000 nodes have
// 2 MiB.
const maxBody = 32 << 20

// Answer is the answer of an HTTP port of a pod.
type Answer struct {
	Status int
	Body   string
	// Ahead is the time of the pod's clock, by the header Date, minus that of this machine.
	Ahead time.Duration
	// Dated reports whether the answer has a date.
	Dated bool
	Err   error // no answer
}

// Pods reaches processes in pods.
type Pods interface {
	// Get requests a path of a port of a pod.
	Get(ctx context.Context, pod *corev1.Pod, port int32, path string) Answer
	// Exec runs a command in a container and writes its output to out. The error has the end of
	// its standard error, and is a CommandError if the command ran.
	Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, out io.Writer) error
}

// CommandError reports that a command in a container ended with an exit code other than 0.
type CommandError struct {
	Code   int
	Stderr string
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("exit code %d: %s", e.Code, strings.TrimSpace(e.Stderr))
}

// apiPods reaches pods through the API server, with the rights of the user: pods/portforward and
// pods/exec. A forwarded port is one of the pod's own network, so neither a NetworkPolicy nor an
// endpoint on 127.0.0.1, as on Windows, prevents it. pods/proxy would need a connection from the
// API server to the pod.
type apiPods struct {
	config *rest.Config
	base   *url.URL
	ids    atomic.Int64
}

func newAPIPods(config *rest.Config) (*apiPods, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &apiPods{config: config, base: base}, nil
}

// url returns the address of a subresource of a pod.
func (a *apiPods) url(pod *corev1.Pod, subresource string) *url.URL {
	return a.base.JoinPath("api/v1/namespaces", pod.Namespace, "pods", pod.Name, subresource)
}

// Get implements Pods.
func (a *apiPods) Get(ctx context.Context, pod *corev1.Pod, port int32, path string) Answer {
	dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(a.url(pod, "portforward"), a.config)
	if err != nil {
		return Answer{Err: err}
	}
	type dialed struct {
		conn httpstream.Connection
		err  error
	}
	result := make(chan dialed, 1)
	go func() { // Dial takes no context
		conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		result <- dialed{conn, err}
	}()
	select {
	case d := <-result:
		if d.err != nil {
			return Answer{Err: fmt.Errorf("port-forward: %w", d.err)}
		}
		defer d.conn.Close()
		return a.request(ctx, d.conn, port, path)
	case <-ctx.Done():
		go func() {
			if d := <-result; d.err == nil {
				d.conn.Close()
			}
		}()
		return Answer{Err: context.Cause(ctx)}
	}
}

// request makes one request over a connection of port-forward.
func (a *apiPods) request(ctx context.Context, conn httpstream.Connection, port int32, path string) Answer {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(a.ids.Add(1), 10))
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := conn.CreateStream(header)
	if err != nil {
		return Answer{Err: fmt.Errorf("port-forward: %w", err)}
	}
	defer failures.Close()
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(header)
	if err != nil {
		return Answer{Err: fmt.Errorf("port-forward: %w", err)}
	}
	reasons := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(failures, 4<<10))
		reasons <- string(text)
	}()
	answer := get(ctx, data, path)
	if answer.Err != nil && ctx.Err() == nil {
		conn.Close()
		if text := strings.TrimSpace(<-reasons); text != "" {
			answer.Err = errors.New(text)
		}
	}
	return answer
}

// get makes one request over a stream.
func get(ctx context.Context, stream httpstream.Stream, path string) Answer {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return streamConn{stream}, nil },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pod"+path, nil)
	if err != nil {
		return Answer{Err: err}
	}
	resp, err := client.Do(req)
	if err != nil {
		return Answer{Err: err}
	}
	defer resp.Body.Close()
	now := time.Now()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("%s has more than %d bytes", path, maxBody)
	}
	a := Answer{Status: resp.StatusCode, Body: string(body), Err: err}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		a.Ahead, a.Dated = date.Sub(now.Truncate(time.Second)), true
	}
	return a
}

// streamConn is a stream as a connection of package http, which sets no deadlines here: the end of
// the context closes the connection below.
type streamConn struct{ httpstream.Stream }

func (streamConn) LocalAddr() net.Addr              { return streamAddr{} }
func (streamConn) RemoteAddr() net.Addr             { return streamAddr{} }
func (streamConn) SetDeadline(time.Time) error      { return nil }
func (streamConn) SetReadDeadline(time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(time.Time) error { return nil }

type streamAddr struct{}

func (streamAddr) Network() string { return "portforward" }
func (streamAddr) String() string  { return "pod" }

// Exec implements Pods.
func (a *apiPods) Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, out io.Writer) error {
	target := a.url(pod, "exec")
	target.RawQuery = url.Values{"container": {container}, "command": command, "stdout": {"true"}, "stderr": {
		"true"}}.Encode()
	executor, err := remotecommand.NewWebSocketExecutor(a.config, http.MethodGet, target.String())
	if err != nil {
		return err
	}
	var stderr tail
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: &stderr})
	var exit interface {
		error
		ExitStatus() int
	}
	switch {
	case errors.As(err, &exit):
		return &CommandError{Code: exit.ExitStatus(), Stderr: stderr.String()}
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// Times for a command in a pod. On a disk that stalls, a command does not end.
const (
	ExecTimeout = 30 * time.Second
	ListTimeout = 5 * time.Minute // for all volumes of a driver
)

// maxOutput is the largest output of a command, in bytes.
const maxOutput = 64 << 20

// Run runs a command in the container of the driver and returns its output. Errors: those of Exec,
// the end of the time, more output than maxOutput. With an error, the output is nil.
func Run(ctx context.Context, c Client, pod *corev1.Pod, limit time.Duration, command ...string) ([]byte, error) {
	ctx, end := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end within %s", limit))
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := bounded{limit: maxOutput, full: func() { cancel(errTooMuch) }}
	err := c.Pods.Exec(ctx, pod, Container, command, &out)
	switch {
	case ctx.Err() != nil: // Exec may still write to out
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	return out.data.Bytes(), nil
}

var errTooMuch = fmt.Errorf("the output has more than %d bytes", maxOutput)

// bounded keeps up to limit bytes, and calls full if there are more. The executor ignores the error
// of a Write and reads on.
type bounded struct {
	data  bytes.Buffer
	limit int
	full  func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.data.Len()+len(p) > b.limit {
		b.full()
		return 0, errTooMuch
	}
	return b.data.Write(p)
}

// tail keeps the last 8 KiB that are written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const limit = 8 << 10
	t.Buffer.Write(p)
	if extra := t.Len() - limit; extra > 0 {
		t.Next(extra)
	}
	return len(p), nil
}
