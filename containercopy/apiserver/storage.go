// Package apiserver is the aggregated API server of copies. It checks a request, has the agent of
// the node prepare the copy, and joins the client to the stream of the agent.
//
// kube-apiserver has authenticated the user, and has authorized podcopiesfrom/proxy or
// podcopiesto/proxy. In addition this server asks for the right to exec in the pod, and runs the
// admission of CONNECT. The admission of pods/exec does not see copies.
package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	copystream "github.com/causeway-csi/causeway/containercopy/stream"
	"github.com/causeway-csi/causeway/containercopy/wire"
)

// Copies serves the resources of the API.
type Copies struct {
	Core       corev1.CoreV1Interface // pods and namespaces
	Authorizer authorizer.Authorizer
	Agents     Agents
	Deny       string // label of a pod or a namespace that denies copies; empty: none

	active copystream.Active
}

// Wait returns when no copy is left, or with the error of ctx. A server that stops accepts no
// copies, and those that have begun can end.
func (c *Copies) Wait(ctx context.Context) error { return c.active.Wait(ctx) }

// Storage returns the resources of the API by name.
func (c *Copies) Storage() map[string]rest.Storage {
	from := resource{name: "podcopyfrom", new: func() runtime.Object { return new(options.PodCopyFromOptions) }}
	to := resource{name: "podcopyto", new: func() runtime.Object { return new(options.PodCopyToOptions) }}
	return map[string]rest.Storage{
		options.From: from, options.From + "/" + options.Proxy: stream{from, c},
		options.To: to, options.To + "/" + options.Proxy: stream{to, c},
	}
}

// resource is a resource that only has a subresource.
type resource struct {
	name string // singular
	new  func() runtime.Object
}

func (r resource) New() runtime.Object     { return r.new() }
func (resource) Destroy()                  {}
func (resource) NamespaceScoped() bool     { return true }
func (r resource) GetSingularName() string { return r.name }

// stream is the subresource: its stream is a copy.
type stream struct {
	resource
	copies *Copies
}

var _ rest.Connecter = stream{}

// ConnectMethods implements rest.Connecter. A WebSocket handshake is a GET.
func (stream) ConnectMethods() []string { return []string{http.MethodGet} }

// NewConnectOptions implements rest.Connecter.
func (s stream) NewConnectOptions() (runtime.Object, bool, string) { return s.new(), false, "" }

// Connect implements rest.Connecter. The errors of the handler are those of the API.
func (s stream) Connect(ctx context.Context, pod string, o runtime.Object, r rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer s.copies.active.Begin()()
		if err := s.copies.serve(ctx, w, req, pod, o); err != nil {
			r.Error(err)
		}
	}), nil
}

// serve has the agent of the node prepare a copy, and joins the client to its stream. Errors: those
// before the stream.
func (c *Copies) serve(ctx context.Context, w http.ResponseWriter, req *http.Request, pod string,
	o runtime.Object) error {
	if !websocket.IsWebSocketUpgrade(req) || !slices.Contains(websocket.Subprotocols(req), wire.Subprotocol) {
		return apierrors.NewBadRequest("a copy is a WebSocket connection of the subprotocol " + wire.Subprotocol)
	}
	request, err := c.request(ctx, pod, o)
	if err != nil {
		return err
	}
	at, err := c.locate(ctx, apirequest.NamespaceValue(ctx), pod, request.container)
	if err != nil {
		return err
	}
	agent, err := c.Agents.connect(ctx, at.node)
	if err != nil {
		return err
	}
	defer agent.Close()
	url, id, err := request.prepare(ctx, agent, at)
	if err != nil {
		return err
	}
	audit.AddAuditAnnotation(ctx, options.Version.Group+"/copy-id", id)
	audit.AddAuditAnnotation(ctx, options.Version.Group+"/container-id", at.container)
	relay, err := c.Agents.open(ctx, url, agent.address, req.Header)
	if err == nil {
		err = relay.join(w)
	}
	if err != nil {
		agent.cancel(ctx, id)
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the agent of the node %s: %v", at.node, err))
	}
	agent.Close() // the stream can take hours
	relay.run()
	return nil
}
