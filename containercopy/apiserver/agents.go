package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/causeway-csi/causeway/internal/peertls"
)

// Limits of the time for an agent.
const (
	callLimit = 20 * time.Second // of a call: it asks the container runtime
	dialLimit = 10 * time.Second // of a connection for a stream
)

// Agents are the agents of the nodes: pods with a label, and a certificate with a common name.
type Agents struct {
	Pods     corev1.PodInterface // in the namespace of the agents
	Selector string              // of their labels
	Port     int                 // of their calls
	Name     string              // in their certificates
	Identity *peertls.Identity   // of this server
}

// connect returns a connection to the agent of a node. Errors: those of the API.
func (a Agents) connect(ctx context.Context, node string) (*grpc.ClientConn, error) {
	list, err := a.Pods.List(ctx, metav1.ListOptions{LabelSelector: a.Selector,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list.Items, ready)
	if at < 0 {
		return nil, apierrors.NewServiceUnavailable(
			fmt.Sprintf("node %s has no agent of container copy that is ready", node))
	}
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(list.Items[at].Status.PodIP, strconv.Itoa(a.Port)),
		grpc.WithTransportCredentials(a.Identity.Client(a.Name)), grpc.WithNoProxy())
}

// ready reports whether an agent serves calls.
func ready(pod core.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" &&
		slices.ContainsFunc(pod.Status.Conditions, func(c core.PodCondition) bool {
			return c.Type == core.PodReady && c.Status == core.ConditionTrue
		})
}

// proxy joins a client to the stream at a URL of an agent.
func (a Agents) proxy(address string, r rest.Responder) (http.Handler, error) {
	location, err := url.Parse(address)
	if err != nil || location.Scheme != "https" || location.Host == "" {
		return nil, fmt.Errorf("invalid URL of a stream")
	}
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: dialLimit}).DialContext,
		TLSClientConfig: a.Identity.ClientConfig(a.Name, "http/1.1")}
	h := utilproxy.NewUpgradeAwareHandler(location, transport, false, true, utilproxy.NewErrorResponder(r))
	h.UseLocationHost = true
	h.RejectForwardingRedirects = true
	return h, nil
}

// handshake are the headers of a WebSocket handshake (RFC 6455, 4.1).
var handshake = []string{"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version",
	"Sec-Websocket-Protocol"}

// stripped returns a request with no other headers than those of its handshake: those with the
// identity of the user are for this server only.
func stripped(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	maps.DeleteFunc(req.Header, func(name string, _ []string) bool { return !slices.Contains(handshake, name) })
	return req
}

// statuses are the errors of an agent as errors of the API.
var statuses = map[codes.Code]struct {
	http   int32
	reason metav1.StatusReason
}{
	codes.InvalidArgument:    {http.StatusBadRequest, metav1.StatusReasonBadRequest},
	codes.NotFound:           {http.StatusNotFound, metav1.StatusReasonNotFound},
	codes.FailedPrecondition: {http.StatusConflict, metav1.StatusReasonConflict},
	codes.PermissionDenied:   {http.StatusForbidden, metav1.StatusReasonForbidden},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
	codes.OutOfRange:         {http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge},
	codes.Unimplemented:      {http.StatusNotImplemented, metav1.StatusReasonUnknown},
	codes.Unavailable:        {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, metav1.StatusReasonTimeout},
}

// retryAfter is the time after which a copy that was one too many may find a free slot, in seconds.
const retryAfter = 5

// statusOf returns the error of the API for an error of the agent of a node.
func statusOf(node string, err error) error {
	s := status.Convert(err)
	known, ok := statuses[s.Code()]
	if !ok {
		known.http, known.reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
	}
	result := metav1.Status{Status: metav1.StatusFailure, Code: known.http, Reason: known.reason, Message: s.Message()}
	switch s.Code() {
	case codes.ResourceExhausted:
		result.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	case codes.Unavailable, codes.DeadlineExceeded:
		result.Message = fmt.Sprintf("the agent of the node %s does not answer: %s", node, s.Message())
	}
	return &apierrors.StatusError{ErrStatus: result}
}
