package sidecar

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// ask asks a server for a path.
func ask(s *Server, path string) (int, string) {
	w := httptest.NewRecorder()
	s.Mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadyzNamesTheAwaitedState(t *testing.T) {
	s := newServer("/metrics")
	measured := func(value string) {
		t.Helper()
		if _, body := ask(s, "/metrics"); !strings.Contains(body, "\ncsi_sidecars_ready "+value+"\n") ||
			!strings.Contains(body, "\ncsi_sidecars_build_info{version=\"dev\"} 1\n") {
			t.Errorf("the metrics have no csi_sidecars_ready %s, or no release: %s", value, body)
		}
	}
	if code, body := ask(s, "/readyz"); code != http.StatusServiceUnavailable || body != "starting\n" {
		t.Errorf("at first: %d %s", code, body)
	}
	measured("0")
	s.Ready("waiting for the driver")
	if code, body := ask(s, "/readyz"); code != http.StatusServiceUnavailable || body != "waiting for the driver\n" {
		t.Errorf("while it waits: %d %s", code, body)
	}
	s.Ready("")
	if code, body := ask(s, "/readyz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("in the end: %d %s", code, body)
	}
	measured("1")
}

func TestReadyzNamesTheStateOfEachPart(t *testing.T) {
	s := newServer("/metrics")
	s.Ready("")
	lack := errors.New("no permission")
	s.Require("b", func() error { return lack })
	s.Require("a", func() error { return nil })
	if code, body := ask(s, "/readyz"); code != http.StatusServiceUnavailable || body != "b: no permission\n" {
		t.Errorf("with a lack: %d %s", code, body)
	}
	s.Ready("waiting for the driver")
	if code, body := ask(s, "/readyz"); code != http.StatusServiceUnavailable ||
		body != "waiting for the driver\nb: no permission\n" {
		t.Errorf("with a lack and a wait: %d %s", code, body)
	}
	s.Ready("")
	lack = nil
	if code, body := ask(s, "/readyz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("in the end: %d %s", code, body)
	}
}

func TestHealthzIsThatOfAllButTheDriver(t *testing.T) {
	s := newServer("/metrics")
	fine := func(context.Context) (string, error) { return "running", nil }
	ill := func(what string) Check {
		return func(context.Context) (string, error) { return "", errors.New(what) }
	}
	for _, c := range []struct {
		name     string
		checks   map[string]Check
		code     int
		has, not string
	}{
		{name: "nobody", code: http.StatusOK, has: "ok"},
		{name: "all are fine", checks: map[string]Check{"a": fine, "b": fine}, code: http.StatusOK, has: "ok"},
		{name: "one is ill", checks: map[string]Check{"b": ill("broken")}, code: http.StatusInternalServerError,
			has: "b: broken", not: "a:"},
		{name: "two are ill", checks: map[string]Check{"a": ill("cracked")}, code: http.StatusInternalServerError,
			has: "a: cracked\nb: broken"},
		{name: "the driver is somebody else",
			checks: map[string]Check{"a": fine, "b": fine,
				"livenessprobe": ill("gone")}, code: http.StatusOK, not: "gone"},
	} {
		for name, check := range c.checks {
			s.Health(name, check)
		}
		code, body := ask(s, "/healthz")
		if code != c.code || !strings.Contains(body, c.has) || c.not != "" && strings.Contains(body, c.not) {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
	}
	if code, body := ask(s, "/healthz/livenessprobe"); code != http.StatusInternalServerError || body != "gone\n" {
		t.Errorf("the driver's own: %d %s", code, body)
	}
	if code, body := ask(s, "/healthz/a"); code != http.StatusOK || body != "running\n" {
		t.Errorf("one of them: %d %s", code, body)
	}
	if code, _ := ask(s, "/healthz/c"); code != http.StatusNotFound {
		t.Errorf("one that is not there: %d", code)
	}
}

func TestMetricsAreThoseOfAllAndOneBadOneHidesNone(t *testing.T) {
	s := newServer("/m")
	s.Register(prometheus.NewCounter(prometheus.CounterOpts{Name: "ours"}))
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "theirs"}))
	s.Measure(other)
	s.Measure(broken{})
	code, body := ask(s, "/m")
	if code != http.StatusOK || !strings.Contains(body, "\nours 0\n") || !strings.Contains(body, "\ntheirs 0\n") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := ask(s, "/metrics"); code != http.StatusNotFound {
		t.Errorf("where they would be by default: %d", code)
	}
}

// broken is a gatherer that cannot.
type broken struct{}

func (broken) Gather() ([]*dto.MetricFamily, error) { return nil, errors.New("broken") }

func TestAPortThatIsTakenIsAnError(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	err := Serve(t.Context(), taken.Listener.Addr().String(), http.NotFoundHandler(), func(err error) { t.Error(err) })
	if err == nil {
		t.Error("it was served twice")
	}
}
