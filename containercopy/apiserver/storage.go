// Package apiserver is the aggregated API server of copies. It checks a request, has the agent of the
// node prepare the copy, and joins the client to the stream of the agent.
//
// kube-apiserver has authenticated the user, and has authorized podcopiesfrom/proxy or
// podcopiesto/proxy. In addition this server asks for the right to exec in the pod, and runs the
// admission of CONNECT. The admission of pods/exec does not see copies.
package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/causeway-csi/causeway/containercopy/api/options"
	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
)

// Copies serves the resources of the API.
type Copies struct {
	Core       corev1.CoreV1Interface // pods and namespaces
	Authorizer authorizer.Authorizer
	Agents     Agents
	Deny       string // label of a pod or a namespace that has no copies; empty: none

	streams sync.WaitGroup
}

// Wait waits for the streams, until ctx ends. A server that stops no longer accepts copies, and the
// copies that have begun can end.
func (c *Copies) Wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		c.streams.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

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

// Connect implements rest.Connecter. Its errors are those of the API: the handler is called for a copy
// that the agent has accepted.
func (s stream) Connect(ctx context.Context, pod string, o runtime.Object, r rest.Responder) (http.Handler, error) {
	req, err := s.copies.request(ctx, pod, o)
	if err != nil {
		return nil, err
	}
	at, err := s.copies.locate(ctx, request.NamespaceValue(ctx), pod, req.container)
	if err != nil {
		return nil, err
	}
	agent, err := s.copies.Agents.connect(ctx, at.node)
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	url, id, err := req.call(limited, v1alpha1.NewContainerCopyClient(agent), at)
	if err != nil {
		return nil, statusOf(at.node, err)
	}
	audit.AddAuditAnnotation(ctx, options.Version.Group+"/copy-id", id)
	audit.AddAuditAnnotation(ctx, options.Version.Group+"/container-id", at.container)
	proxy, err := s.copies.Agents.proxy(url, r)
	if err != nil {
		return nil, fmt.Errorf("the agent of the node %s: %w", at.node, err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.copies.streams.Add(1)
		defer s.copies.streams.Done()
		proxy.ServeHTTP(w, stripped(req))
	}), nil
}
