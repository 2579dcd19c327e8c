package main

import (
	"strings"
	"testing"
)

// The process itself is started by none of these: each ends before that.
func TestTheCommandLine(t *testing.T) {
	path := "--kubelet-registration-path=/var/lib/kubelet/plugins/csi.example.com/csi.sock"
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"the version needs no path", []string{"--version"}, 0},
		{"help is help", []string{"help"}, 0},
		{"the registrar is on by itself, and needs a path", nil, 2},
		{"upstream's exec probe of the registrar succeeds", []string{path, "--mode=kubelet-registration-probe"}, 0},
		{"it succeeds with a prefix, too",
			[]string{"--controllers=node-driver-registrar", path,
				"--node-driver-registrar-mode=kubelet-registration-probe"}, 0},
		{"flags of what is off are refused", []string{"--controllers=livenessprobe", path}, 2},
		{"a health port is a port", []string{path, "--livenessprobe-health-port=healthz"}, 2},
		{"a controller of the other binary is not here", []string{"--controllers=attacher"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := command().Main(c.args); got != c.code {
				t.Errorf("%s ends with %d, want %d", strings.Join(c.args, " "), got, c.code)
			}
		})
	}
}
