package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/client"
	"github.com/causeway-csi/causeway/containercopy/place"
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
		err = c.hint(c.checkLocal(s))
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
		err = causeOf(ctx, err)
	}
	err = c.hint(err)
	r.end(result, c.checksum == "sha256", err)
	switch {
	case err == nil:
		return codeOK
	case busy(err):
		return codeBusy
	}
	return codeError
}

// hint adds the remedy to the error of an existing file, here or in the container.
func (c *command) hint(err error) error {
	var f *wire.Failure
	exists := errors.Is(err, place.ErrExists) || errors.As(err, &f) && f.Code == wire.AlreadyExists
	if !exists || c.overwrite != options.Never {
		return err
	}
	return fmt.Errorf("%w; --overwrite=files replaces files", err)
}

// causeOf returns the reason for which ctx has ended, with an error that has another reason, such
// as one that names a part of the copy.
func causeOf(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(err, client.ErrUnknown) {
		return fmt.Errorf("%w: %w", client.ErrUnknown, cause)
	}
	for _, follows := range []error{wire.ErrNoResult, net.ErrClosed, ctx.Err(), cause} {
		if errors.Is(err, follows) {
			return cause
		}
	}
	return fmt.Errorf("%w; %w", cause, err)
}

// checkLocal checks the path on this machine before a request. Errors: client.ErrUsage if it, or
// the directory around a destination, does not exist; those of the system.
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
		err = client.CheckDestination(c.to.Path, overwrites[c.overwrite])
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
	if c.from.Stdio() {
		request.SHA256AtEnd = o.SHA256
	} else {
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
