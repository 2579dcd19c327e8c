package sidecar

import "testing"

func TestAddress(t *testing.T) {
	for _, c := range []struct {
		name, said, want string
		bad              bool
	}{
		{name: "a port is one on all of the host's addresses", said: "9808", want: ":9808"},
		{name: "a host narrows it", said: "127.0.0.1:9808", want: "127.0.0.1:9808"},
		{name: "an IPv6 host has brackets", said: "[::1]:9808", want: "[::1]:9808"},
		{name: "nothing is off", said: ""},
		{name: "zero is off", said: "0"},
		{name: "zero of a host is off", said: "127.0.0.1:0"},
		{name: "a negative port is off, as upstream has it", said: "-1"},
		{name: "a word is no port", said: "http", bad: true},
		{name: "there are no ports over 65535", said: "65536", bad: true},
		{name: "an IPv6 host without brackets is ambiguous", said: "::1:9808", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a Address
			err := a.Set(c.said)
			if (err != nil) != c.bad {
				t.Fatalf("Set(%q) = %v", c.said, err)
			}
			if got := a.Listen(); got != c.want {
				t.Errorf("Listen() = %q, want %q", got, c.want)
			}
		})
	}
}
