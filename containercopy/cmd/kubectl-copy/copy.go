package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"syscall"

	gorilla "github.com/gorilla/websocket"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the providers that kubectl has
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport/websocket"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/client"
	"github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Exit codes.
const (
	codeOK    = 0
	codeError = 1
	codeUsage = 2
	codeBusy  = 75 // EX_TEMPFAIL of sysexits.h
)

// streams are the standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run runs a command line, and returns the exit code.
func run(ctx context.Context, args []string, s streams) int {
	c, err := parse(args, s.out)
	if err == nil && !c.help && !c.version {
		err = c.checkLocal(s)
	}
	switch {
	case err != nil:
		fmt.Fprintf(s.err, "kubectl copy: %s\n", printable(err.Error()))
		if errors.Is(err, client.ErrUsage) {
			return codeUsage
		}
		return codeError
	case c.help:
		return codeOK
	case c.version:
		fmt.Fprintln(s.out, version)
		return codeOK
	}
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the copy takes longer than %s", c.timeout))
		defer cancel()
	}
	r := newReport(s.err, c.progress)
	result, err := c.copy(ctx, s, r)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	r.end(result, c.checksum == "sha256", err)
	switch {
	case err == nil:
		return codeOK
	case busy(err):
		return codeBusy
	}
	return codeError
}

// checkLocal checks the path on this machine before a request. Errors: client.ErrUsage if it, or the
// directory around a destination, does not exist; those of the system.
func (c *command) checkLocal(s streams) error {
	var err error
	switch {
	case c.from.Stdio() && isTerminal(s.in):
		return fmt.Errorf("%w: standard input is a terminal: must be a tar stream", client.ErrUsage)
	case c.to.Stdio() && isTerminal(s.out): // it would interpret the files of the container
		return fmt.Errorf("%w: standard output is a terminal: must be a file or a pipe", client.ErrUsage)
	case c.from.Stdio(), c.to.Stdio():
	case c.from.Local():
		_, err = os.Stat(c.from.Path)
	default:
		err = client.CheckDestination(c.to.Path)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%w: %w", client.ErrUsage, err)
	}
	return err
}

// copy makes the copy.
func (c *command) copy(ctx context.Context, s streams, r *report) (client.Result, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return client.Result{}, err
	}
	namespace := c.pod().Namespace
	if namespace == "" {
		if namespace, _, err = loader.Namespace(); err != nil {
			return client.Result{}, err
		}
	}
	if c.from.Local() {
		return c.send(ctx, config, namespace, s.in, r)
	}
	return c.receive(ctx, config, namespace, s.out, r)
}

// receive copies from a container.
func (c *command) receive(ctx context.Context, config *rest.Config, namespace string, out io.Writer,
	r *report) (client.Result, error) {
	o := c.options(r)
	path, contents := client.TrimContents(c.from.Path)
	request := options.PodCopyFromOptions{Container: c.container, Path: path, SHA256: o.SHA256}
	s, end, err := dial(ctx, config, options.URLPath(options.From, namespace, c.from.Pod), request.Values())
	if err != nil {
		return client.Result{}, err
	}
	defer end()
	r.begin("received")
	if c.to.Stdio() {
		return client.ReceiveStream(ctx, s, out, o)
	}
	return client.Receive(ctx, s, c.to.Path, contents, o)
}

// send copies to a container.
func (c *command) send(ctx context.Context, config *rest.Config, namespace string, in io.Reader,
	r *report) (client.Result, error) {
	o := c.options(r)
	request := options.PodCopyToOptions{Container: c.container, Path: c.to.Path, Overwrite: c.overwrite,
		PreserveMode: o.Mode, PreserveTimes: o.Times, PreserveOwner: o.Owner}
	var source *client.Local
	if !c.from.Stdio() {
		r.begin("read")
		var err error
		if source, err = client.OpenSource(ctx, c.from.Path, o); err != nil {
			return client.Result{}, err
		}
		request.Contents = source.Contents
		request.Size, request.Checksum = &source.Sum.Size, &source.Sum.CRC32C
		request.SHA256 = hex.EncodeToString(source.Sum.SHA256)
	}
	s, end, err := dial(ctx, config, options.URLPath(options.To, namespace, c.to.Pod), request.Values())
	if err != nil {
		return client.Result{}, err
	}
	defer end()
	r.begin("sent")
	if source == nil {
		return client.SendStream(ctx, in, s, o)
	}
	return source.Send(ctx, s, o)
}

// dial begins a copy at kube-apiserver. The end of ctx ends the connection; the caller calls end.
func dial(ctx context.Context, config *rest.Config, path string, query url.Values) (s *wire.Stream, end func(),
	err error) {
	config = rest.CopyConfig(config)
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, nil, err
	}
	target := base.JoinPath(path)
	target.RawQuery = query.Encode()
	// gorilla/websocket does not end a handshake with its context: negotiate does.
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	rt, holder, err := websocket.RoundTripperFor(config)
	if err != nil {
		return nil, nil, err
	}
	conn, err := negotiate(ctx, func() (*gorilla.Conn, error) {
		return websocket.Negotiate(rt, holder, req, wire.Subprotocol)
	})
	if err != nil {
		return nil, nil, explain(err)
	}
	socket := stream.NewSocket(conn)
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	return wire.NewStream(socket), func() { stop(); socket.Close() }, nil
}

// negotiate returns the connection of a handshake. After the end of ctx it does not wait for it.
func negotiate(ctx context.Context, handshake func() (*gorilla.Conn, error)) (*gorilla.Conn, error) {
	type result struct {
		conn *gorilla.Conn
		err  error
	}
	results := make(chan result, 1)
	go func() {
		conn, err := handshake()
		results <- result{conn, err}
	}()
	select {
	case r := <-results:
		return r.conn, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-results; r.err == nil {
			r.conn.Close()
		}
	}()
	return nil, ctx.Err()
}
