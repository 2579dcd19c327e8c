package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	gorilla "github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/streaming/pkg/httpstream"

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
	c, err := parse(args, s.err)
	switch {
	case err != nil:
		fmt.Fprintf(s.err, "kubectl copy: %v\n", err)
		return codeUsage
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

// busy reports whether an error is that of too many copies.
func busy(err error) bool {
	var f *wire.Failure
	return apierrors.IsTooManyRequests(err) || errors.As(err, &f) && f.Code == wire.ResourceExhausted
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
		return c.send(ctx, config, namespace, s.in, c.options(r))
	}
	return c.receive(ctx, config, namespace, s.out, c.options(r))
}

// receive copies from a container.
func (c *command) receive(ctx context.Context, config *rest.Config, namespace string, out io.Writer,
	o client.Options) (client.Result, error) {
	path, contents := client.TrimContents(c.from.Path)
	if !c.to.Stdio() {
		if err := client.CheckDestination(c.to.Path); err != nil {
			return client.Result{}, err
		}
	}
	request := options.PodCopyFromOptions{Container: c.container, Path: path, SHA256: o.SHA256}
	s, end, err := dial(ctx, config, options.URLPath(options.From, namespace, c.from.Pod), request.Values())
	if err != nil {
		return client.Result{}, err
	}
	defer end()
	if c.to.Stdio() {
		return client.ReceiveStream(ctx, s, out, o)
	}
	return client.Receive(ctx, s, c.to.Path, contents, o)
}

// send copies to a container.
func (c *command) send(ctx context.Context, config *rest.Config, namespace string, in io.Reader,
	o client.Options) (client.Result, error) {
	request := options.PodCopyToOptions{Container: c.container, Path: c.to.Path, Overwrite: c.overwrite,
		PreserveMode: o.Mode, PreserveTimes: o.Times, PreserveOwner: o.Owner}
	var source *client.Local
	if !c.from.Stdio() {
		var err error
		quiet := o
		quiet.Progress = nil
		if source, err = client.OpenSource(ctx, c.from.Path, quiet); err != nil {
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	rt, holder, err := websocket.RoundTripperFor(config)
	if err != nil {
		return nil, nil, err
	}
	conn, err := websocket.Negotiate(rt, holder, req, wire.Subprotocol)
	if err != nil {
		return nil, nil, explain(err)
	}
	socket := stream.NewSocket(conn)
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	return wire.NewStream(socket), func() { stop(); socket.Close() }, nil
}

// errNoAPI: kube-apiserver does not know the resource.
var errNoAPI = errors.New("the cluster has no container copy, or it is not available: see kubectl get apiservice " +
	options.Version.Version + "." + options.Version.Group)

// explain returns the reason of a refused connection.
func explain(err error) error {
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) {
		err = upgrade.Cause
	}
	var api *apierrors.StatusError
	if errors.As(err, &api) {
		if s := api.ErrStatus; s.Code == http.StatusNotFound && s.Details != nil && s.Details.Name == "" {
			return fmt.Errorf("%w (%s)", errNoAPI, s.Message)
		}
		return api
	}
	for _, status := range []int{http.StatusNotFound, http.StatusServiceUnavailable} { // kube-apiserver itself, in plain text
		if errors.Is(err, gorilla.ErrBadHandshake) && strings.Contains(err.Error(), fmt.Sprintf("(%d ", status)) {
			return fmt.Errorf("%w (%w)", errNoAPI, err)
		}
	}
	return err
}
