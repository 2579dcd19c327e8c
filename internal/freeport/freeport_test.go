package freeport

import (
	"net"
	"testing"
)

// TestAddressesDiffer also if the ports of two hosts are the same, and more often than there are
// hosts.
func TestAddressesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range hosts + 2 {
		address := Must(t)
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if seen[address] {
			t.Errorf("%s is returned again, though it has a listener", address)
		}
		seen[address] = true
	}
}
