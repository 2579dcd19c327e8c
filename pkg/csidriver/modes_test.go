package csidriver

import (
	"strings"
	"testing"
)

func TestModes(t *testing.T) {
	router := []string{"--mode=controller", "--peers=dns:nodes.kube-system.svc:9808", "--peer-certs=/certs"}
	node := []string{"--mode=node", "--peer-listen=:9808", "--peer-certs=/certs"}
	with := func(args []string, more ...string) []string { return append(append([]string(nil), args...), more...) }
	for name, tc := range map[string]struct {
		args    []string
		wantErr string // "": no error
	}{
		"all":      {[]string{"--mode=all"}, ""},
		"a router": {router, ""},
		"a router with all flags": {with(router, "--peer-server=nodes", "--forgotten-nodes=/forgotten",
			"--peer-client=x"), ""},
		"a router to a list": {with(router, "--peers=10.0.0.1:9808,[fd00::1]:9808,host:1"), ""},
		"a node":             {node, ""},
		"an unknown mode": {[]string{"--mode=both"},
			`--mode "both": must be all, controller or node`},
		"a router without peers":             {[]string{"--mode=controller", "--peer-certs=/certs"}, "--peers"},
		"a router without certificates":      {[]string{"--mode=controller", "--peers=a:1"}, "--peer-certs"},
		"a node without an address":          {[]string{"--mode=node", "--peer-certs=/certs"}, "--peer-listen"},
		"a node without certificates":        {[]string{"--mode=node", "--peer-listen=:1"}, "--peer-certs"},
		"a node with peers":                  {with(node, "--peers=a:1"), "--peers"},
		"a node with forgotten nodes":        {with(node, "--forgotten-nodes=/x"), "--forgotten-nodes"},
		"a router with a port":               {with(router, "--peer-listen=:1"), "--peer-listen"},
		"mode all with a port":               {[]string{"--peer-listen=:1"}, "--peer-listen"},
		"mode all with certificates":         {[]string{"--peer-certs=/certs"}, "--peer-certs"},
		"a list with a gap":                  {with(router, "--peers=a:1,,b:1"), "--peers"},
		"an address without a port":          {with(router, "--peers=a"), "--peers"},
		"a list with spaces":                 {with(router, "--peers=a:1, b:1"), "--peers"},
		"an address with a name for a port":  {with(router, "--peers=a:http"), "--peers"},
		"a DNS name with port 0":             {with(router, "--peers=dns:nodes:0"), "--peers"},
		"a port that is too large":           {with(router, "--peers=dns:nodes:99999"), "--peers"},
		"an address twice":                   {with(router, "--peers=a:1,a:1"), "twice"},
		"a DNS name without a port":          {with(router, "--peers=dns:nodes"), "--peers"},
		"a port without a DNS name":          {with(router, "--peers=dns::1"), "--peers"},
		"a relative directory":               {with(router, "--peer-certs=certs"), "--peer-certs"},
		"a relative list of forgotten nodes": {with(router, "--forgotten-nodes=x"), "--forgotten-nodes"},
		"a node without a client":            {with(node, "--peer-client="), "--peer-client"},
		"a node with an invalid port":        {with(node, "--peer-listen=9808"), "--peer-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(program(), tc.args, env(nil))
			if ok := err == nil; ok != (tc.wantErr == "") || !ok && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("%q: %v, want %q", tc.args, err, tc.wantErr)
			}
		})
	}
}

func TestCentralStorageHasNoPeers(t *testing.T) {
	for _, m := range []mode{modeAll, modeController, modeNode} {
		args := []string{"--backend=central", "--mode=" + string(m)}
		if _, err := parse(program(), args, env(nil)); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
	if _, err := parse(program(), []string{"--backend=central", "--mode=controller", "--peers=a:1"},
		env(nil)); err == nil || !strings.Contains(err.Error(), "--peers") {
		t.Errorf("with peers: %v", err)
	}
}
