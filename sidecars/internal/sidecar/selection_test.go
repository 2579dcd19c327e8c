package sidecar

import (
	"strings"
	"testing"
)

func TestWhoIsOn(t *testing.T) {
	registry := []Controller{&toy{name: "a"}, &toy{name: "b"}, &toy{name: "rare", needs: Needs{ByName: true}}}
	for _, c := range []struct{ name, list, want, err string }{
		{name: "all but those that must be named", list: "*", want: "[a b]"},
		{name: "all and one of those", list: "*,rare", want: "[a b rare]"},
		{name: "the order is the registry's", list: "rare,a", want: "[a rare]"},
		{name: "one less", list: "*,-a", want: "[b]"},
		{name: "one less, said first", list: "-a,*", want: "[b]"},
		{name: "spaces and empty words do not count", list: " a ,, ", want: "[a]"},
		{name: "twice is once", list: "a,a", want: "[a]"},
		{name: "one less of nothing is nothing", list: "-a", err: "leaves nothing to run"},
		{name: "nothing", list: "", err: "leaves nothing to run"},
		{name: "all less all", list: "*,-a,-b", err: "leaves nothing to run"},
		{name: "one that is not there", list: "c", err: `unknown controller "c": must be one of a, b, rare`},
		{name: "one less that is not there", list: "*,-c", err: `unknown controller "c"`},
		{name: "all less is no word", list: "-*", err: `unknown controller "*"`},
		{name: "yes and no", list: "a,-a", err: "both a and -a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			on, err := choose(c.list, registry)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q in it", err, c.err)
				}
				return
			}
			if got := said(on); err != nil || got != c.want {
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
		})
	}
}
