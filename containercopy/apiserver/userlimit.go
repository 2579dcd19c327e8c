package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/lru"

	"github.com/causeway-csi/causeway/containercopy/api/options"
)

const (
	// A copy asks the cluster's API server for the pod, its namespace and the agents, which this
	// server may do 300 times in a second for all users (cmd/apiserver): one user gets a fifth. The
	// two questions of the authorization have a client of their own, with 200 in a second.
	userRate = 20 // requests in a second
	// userBurst requests come at once after a pause, such as one kubectl copy for each pod of a node.
	userBurst = 100
	// maxUsers are remembered. The one whose last request is the oldest is forgotten first.
	maxUsers = 4096
)

// refused counts the refusals of all users: they come before the audit.
var refused = newRefused()

func newRefused() *metrics.Counter {
	c := metrics.NewCounter(&metrics.CounterOpts{Name: "container_copy_refused_requests_total",
		Help: "Requests over the limit of a user.", StabilityLevel: metrics.ALPHA})
	legacyregistry.MustRegister(c)
	return c
}

// probes are answered without a limit: the kubelet shares its user with every anonymous client.
var probes = []string{"/healthz", "/livez", "/readyz"}

// userLimit limits the requests of each user.
type userLimit struct {
	authentication server.AuthenticationInfo
	mu             sync.Mutex // makes Get and Add of users one step
	users          *lru.Cache // of *rate.Limiter, by name
}

// limitUsers is the chain of filters of the generic server behind a limit for each user. The limit
// comes before authorization, which asks the cluster's API server. Kubernetes' own limit, priority
// and fairness, lets requests of streams pass.
func limitUsers(api http.Handler, c *server.Config) http.Handler {
	inner := *c
	inner.Authentication.Authenticator = authenticator.RequestFunc(authenticated)
	l := newUserLimit(c.Authentication)
	return l.filter(server.DefaultBuildHandlerChain(api, &inner))
}

func newUserLimit(a server.AuthenticationInfo) *userLimit {
	return &userLimit{authentication: a, users: lru.New(maxUsers)}
}

// authenticationKey is the key of the result of an authentication in the context of a request.
type authenticationKey struct{}

// authenticationResult is that of an [authenticator.Request].
type authenticationResult struct {
	response *authenticator.Response
	ok       bool
	err      error
}

// authenticated returns the result for a request that has passed the limit. A second authentication
// could ask the cluster's API server again.
func authenticated(r *http.Request) (*authenticator.Response, bool, error) {
	a, _ := r.Context().Value(authenticationKey{}).(authenticationResult)
	return a.response, a.ok, a.err
}

// filter authenticates requests, as the filter of the generic server does, and answers 429 to those
// of a user over the limit. Requests without a user pass: next refuses them.
func (l *userLimit) filter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if auds := l.authentication.APIAudiences; len(auds) > 0 {
			r = r.WithContext(authenticator.WithAudiences(r.Context(), auds))
		}
		var a authenticationResult
		a.response, a.ok, a.err = l.authentication.Authenticator.AuthenticateRequest(r)
		if a.err == nil && a.ok && !slices.Contains(probes, r.URL.Path) {
			if user := a.response.User.GetName(); !l.limiter(user).Allow() {
				refused.Inc()
				text := fmt.Sprintf("user %q, or the service accounts of its namespace, sent more than %d requests "+
					"in a second: try again in a second", user, userRate)
				responsewriters.ErrorNegotiated(apierrors.NewTooManyRequests(text, 1), Codecs, options.Version, w, r)
				return
			}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), authenticationKey{}, a)))
	})
}

// limiter returns the limiter of a user. The service accounts of a namespace have one together: a
// tenant can make any number of them.
func (l *userLimit) limiter(user string) *rate.Limiter {
	if namespace, _, err := serviceaccount.SplitUsername(user); err == nil {
		user = serviceaccount.MakeNamespaceGroupName(namespace)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.users.Get(user); ok {
		return known.(*rate.Limiter)
	}
	added := rate.NewLimiter(userRate, userBurst)
	l.users.Add(user, added)
	return added
}
