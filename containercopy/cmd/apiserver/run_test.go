package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/causeway-csi/causeway/internal/peertls"
)

func TestInvalidFlags(t *testing.T) {
	const ok = "--agent-namespace=ns"
	for _, args := range [][]string{
		{}, {ok, "extra"}, {ok, "--nonsense"}, {ok, "--agent-port=0"}, {ok, "--agent-port=65536"}, {ok, "--agent-selector="}, {ok, "--agent-name="},
		{ok, "--drain-timeout=-1s"}, {ok, "--secure-port=-1"}, {ok, "--audit-log-path=-", "--audit-log-mode=none"},
	} {
		var log bytes.Buffer
		if code := run(t.Context(), args, &log); code != 2 || log.Len() == 0 {
			t.Errorf("%q: exit code %d, %s", args, code, &log)
		}
	}
	var log bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &log); code != 0 || !strings.Contains(log.String(), "--agent-tls-dir") || strings.Contains(log.String(), "--etcd") {
		t.Errorf("--help: %d, %s", code, &log)
	}
}

// TestNoStart: a server without certificates, or without an API server to ask, ends with an error.
func TestNoStart(t *testing.T) {
	dir := t.TempDir()
	if _, err := peertls.Make(dir, peertls.MakeOptions{Client: "copies"}); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "none")
	for tls, words := range map[string]string{missing: "certificates in", filepath.Join(dir, "router"): "none: no such file"} {
		var log bytes.Buffer
		code := run(t.Context(), []string{"--agent-namespace=ns", "--agent-tls-dir=" + tls, "--cert-dir=" + dir, "--kubeconfig=" + missing,
			"--authentication-kubeconfig=" + missing, "--authorization-kubeconfig=" + missing}, &log)
		if code != 1 || !strings.Contains(log.String(), words) {
			t.Errorf("%s: exit code %d, %s", tls, code, &log)
		}
	}
}
