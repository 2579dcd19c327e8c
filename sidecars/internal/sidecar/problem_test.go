package sidecar

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

func TestAProblemIsLoggedAtOnceAndThenSeldom(t *testing.T) {
	lines := 0
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, _ string) { lines++ }, funcr.Options{}))
	var p Problem
	for _, c := range []struct {
		name    string
		earlier time.Duration // that the last line is moved back
		err     error
		want    int
	}{
		{name: "no problem", want: 0},
		{name: "the first", err: errors.New("denied"), want: 1},
		{name: "the same, soon after", err: errors.New("denied"), want: 1},
		{name: "it is over", want: 1},
		{name: "it is back, soon after", err: errors.New("denied"), want: 1},
		{name: "it lasts", earlier: stillWaiting, err: errors.New("denied"), want: 2},
	} {
		p.logged = p.logged.Add(-c.earlier)
		p.Report(ctx, "Cannot do it", c.err)
		if lines != c.want || !errors.Is(p.Err(), c.err) {
			t.Errorf("%s: %d lines and %v, want %d and %v", c.name, lines, p.Err(), c.want, c.err)
		}
	}
}
