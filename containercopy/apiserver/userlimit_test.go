package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/feature"
)

// TestAUserOverTheLimit asks no authorizer, which would ask the cluster's API server, and takes
// nothing from other users and from probes.
func TestAUserOverTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, authentications, authorized := 0, 0, 0
		c := server.NewConfig(Codecs)
		Configure(c)
		c.FeatureGate = feature.DefaultFeatureGate
		c.RequestInfoResolver = &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis")}
		c.Authentication.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			authentications++
			name := r.Header.Get("User")
			r.Header.Del("User")
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, name != "", nil
		})
		c.Authorization.Authorizer = authorizer.AuthorizerFunc(
			func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				authorized++
				return authorizer.DecisionAllow, "", nil
			})
		chain := c.BuildHandlerChainFunc(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
		}), c)
		ask := func(name, path string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.Header.Set("User", name)
			requests++
			w := httptest.NewRecorder()
			chain.ServeHTTP(w, r)
			return w
		}
		for _, step := range []struct {
			user, path string
			times      int
			want       int
		}{
			{"eve", fromPath("ns", "p"), userBurst, http.StatusTeapot},
			{"eve", fromPath("ns", "p"), 3, http.StatusTooManyRequests},
			{"eve", "/random", 1, http.StatusTooManyRequests},
			{"eve", "/readyz", 3, http.StatusTeapot},
			{"bob", fromPath("ns", "p"), userBurst, http.StatusTeapot},
			{"system:serviceaccount:team:one", fromPath("ns", "p"), userBurst, http.StatusTeapot},
			{"system:serviceaccount:team:two", fromPath("ns", "p"), 1, http.StatusTooManyRequests},
			{"system:serviceaccount:other:one", fromPath("ns", "p"), 1, http.StatusTeapot},
			{"", fromPath("ns", "p"), 3, http.StatusUnauthorized},
		} {
			for i := range step.times {
				if got := ask(step.user, step.path); got.Code != step.want {
					t.Fatalf("request %d of %q to %s: %d %s, want %d", i+1, step.user, step.path, got.Code, got.Body, step.want)
				}
			}
		}
		if want := 3*userBurst + 4; authorized != want {
			t.Errorf("%d requests asked the authorizer, want %d", authorized, want)
		}
		head := ask("eve", fromPath("ns", "p")).Header()
		if head.Get("Retry-After") != "1" {
			t.Errorf("the header of a refusal is %v", head)
		}
		if authentications != requests {
			t.Errorf("%d authentications of %d requests", authentications, requests)
		}
		time.Sleep(time.Second)
		for i := range userRate + 1 {
			want := http.StatusTeapot
			if i == userRate {
				want = http.StatusTooManyRequests
			}
			if got := ask("eve", fromPath("ns", "p")); got.Code != want {
				t.Errorf("request %d after a second: %d, want %d", i+1, got.Code, want)
			}
		}
	})
}

// TestFirstRequestsAtOnce share one limit.
func TestFirstRequestsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newUserLimit(server.AuthenticationInfo{})
		var group sync.WaitGroup
		var allowed atomic.Int32
		for range 4 * userBurst {
			group.Go(func() {
				if l.limiter("eve").Allow() {
					allowed.Add(1)
				}
			})
		}
		group.Wait()
		if n := allowed.Load(); n != userBurst {
			t.Errorf("%d requests pass, want %d", n, userBurst)
		}
	})
}

// TestForgottenUsers: names that a client makes up need no more memory than maxUsers names.
func TestForgottenUsers(t *testing.T) {
	l := newUserLimit(server.AuthenticationInfo{})
	first := l.limiter("first")
	if l.limiter("first") != first {
		t.Error("a second request has a limit of its own")
	}
	for i := range maxUsers {
		l.limiter(fmt.Sprint(i))
		if i == maxUsers/2 && l.limiter("first") != first { // which is not the oldest any more
			t.Error("a user is forgotten who was there a moment ago")
		}
	}
	if l.limiter("first") != first {
		t.Error("another than the user with the oldest request is forgotten first")
	}
	if n := l.users.Len(); n != maxUsers {
		t.Errorf("%d users are remembered, want %d", n, maxUsers)
	}
}
