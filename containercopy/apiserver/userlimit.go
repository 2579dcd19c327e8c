package apiserver

import (
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
	// A request of a copy asks the cluster's API server three times, which this server may do 300 times
	// in a second for all users (cmd/apiserver): one user gets a fifth.
	userRate = 20 // requests in a second
	// userBurst requests come at once after a pause, such as one kubectl copy for each pod of a node.
	userBurst = 100
	// maxUsers are remembered. The one whose last request is the oldest is forgotten first.
	maxUsers = 4096
)

// refused counts the refusals of all users: they come before the audit.
var refused = metrics.NewCounter(&metrics.CounterOpts{Name: "container_copy_refused_requests_total",
	Help: "Requests over the limit of a user.", StabilityLevel: metrics.ALPHA})

func init() { legacyregistry.MustRegister(refused) }

// probes are answered without a limit: the kubelet shares its user with every anonymous client.
var probes = []string{"/healthz", "/livez", "/readyz"}

// userLimit limits the requests of each user.
type userLimit struct {
	authenticator authenticator.Request
	mu            sync.Mutex // of the first request of a user
	users         *lru.Cache // of *rate.Limiter, by name
}

// limitUsers is the chain of filters of the generic server behind a limit for each user. The limit
// comes before authorization, which asks the cluster's API server. Kubernetes' own limit, priority
// and fairness, lets requests of streams pass.
func limitUsers(api http.Handler, c *server.Config) http.Handler {
	return newUserLimit(c.Authentication.Authenticator).filter(server.DefaultBuildHandlerChain(api, c))
}

func newUserLimit(a authenticator.Request) *userLimit {
	return &userLimit{authenticator: a, users: lru.New(maxUsers)}
}

// filter answers 429 to the requests of a user over the limit. Requests without a user pass: next
// refuses them.
func (l *userLimit) filter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(probes, r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		// An authenticator removes the headers that it has read.
		resp, ok, err := l.authenticator.AuthenticateRequest(r.Clone(r.Context()))
		if err == nil && ok && !l.limiter(resp.User.GetName()).Allow() {
			refused.Inc()
			w.Header().Set("Connection", "close") // with HTTP/2, the end of a connection that floods
			refusal := apierrors.NewTooManyRequests(fmt.Sprintf("more than %d requests in a second from user %q, or "+
				"from the service accounts of its namespace: container copy has a limit", userRate, resp.User.GetName()), 1)
			responsewriters.ErrorNegotiated(refusal, Codecs, options.Version, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// limiter returns the limiter of a user. The service accounts of a namespace have one together: a tenant
// can make any number of them.
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
