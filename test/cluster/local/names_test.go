package local

import (
	"fmt"
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"causeway": true, "a": true, "a-1": true, "": false, "-a": false, "a-": false, "A": false, "1": false, "a/b": false, "..": false,
		"abcdefghijklmnopqrstuvwxyz012345": true, "abcdefghijklmnopqrstuvwxyz0123456": false,
	} {
		if err := checkName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
		if link := hostLink(name); len(link) > 15 {
			t.Errorf("%q has the network device %q, which is longer than 15 bytes", name, link)
		}
	}
}

// TestGuestsAreTheLastNodes: addresses and networks of pods are counted on from the ordinary nodes.
func TestGuestsAreTheLastNodes(t *testing.T) {
	s := spec{Subnet: "10.99.7", Nodes: 2, Guests: []string{"a", "b"}}
	var got []string
	for _, n := range s.nodes() {
		got = append(got, fmt.Sprint(n.Name, " ", n.Address, " ", n.Pods, " ", n.kernel))
	}
	want := []string{"node-1 10.99.7.11 10.244.1.0/24 ", "node-2 10.99.7.12 10.244.2.0/24 ",
		"guest-1 10.99.7.13 10.244.3.0/24 a", "guest-2 10.99.7.14 10.244.4.0/24 b"}
	if !slices.Equal(got, want) {
		t.Errorf("the nodes are %q, want %q", got, want)
	}
	if n, err := s.find("guest-2"); err != nil || !n.guest() {
		t.Errorf("guest-2 is %+v, %v", n, err)
	}
}
