package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
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
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/causeway-csi/causeway/containercopy/api/v1alpha1"
	"github.com/causeway-csi/causeway/internal/peertls"
)

// Limits of the time for an agent.
const (
	callLimit = 20 * time.Second // of a call: it asks the container runtime
	dialLimit = 10 * time.Second // of the handshake of a stream
)

// Agents are the agents of the nodes: pods with a label, and a certificate with a common name.
type Agents struct {
	Pods     corev1.PodInterface // in the namespace of the agents
	Selector string              // of their labels
	Port     int                 // of their calls
	Name     string              // in their certificates
	Identity *peertls.Identity   // of this server
}

// agent is a connection to an agent.
type agent struct {
	*grpc.ClientConn
	address string // IP address
	node    string
}

// connect returns a connection to the agent of a node. Errors: those of the API.
func (a Agents) connect(ctx context.Context, node string) (*agent, error) {
	list, err := a.Pods.List(ctx, metav1.ListOptions{LabelSelector: a.Selector,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list.Items, ready)
	if at < 0 {
		return nil, apierrors.NewServiceUnavailable(
			fmt.Sprintf("node %s has no agent of container copy that is ready: only Linux nodes have one", node))
	}
	address := list.Items[at].Status.PodIP
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(address, strconv.Itoa(a.Port)),
		grpc.WithTransportCredentials(a.Identity.Client(a.Name)), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	return &agent{conn, address, node}, nil
}

// cancel ends a copy whose stream has not begun: it has a slot for a minute otherwise.
func (a *agent) cancel(ctx context.Context, id string) {
	limited, stop := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer stop()
	_, err := v1alpha1.NewContainerCopyClient(a).CancelCopy(limited, &v1alpha1.CancelCopyRequest{CopyId: id})
	if err != nil {
		klog.ErrorS(err, "a copy without a stream keeps its slot for a minute", "node", a.node, "copy", id)
	}
}

// ready reports whether an agent serves calls.
func ready(pod core.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" &&
		slices.ContainsFunc(pod.Status.Conditions, func(c core.PodCondition) bool {
			return c.Type == core.PodReady && c.Status == core.ConditionTrue
		})
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
