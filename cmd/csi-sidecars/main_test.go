package main

import (
	"bytes"
	"os"
	"testing"
)

// intro is what the page of flags begins with.
const intro = `# Flags of csi-sidecars

Made from the command itself by ` + "`make generate-flags`" + `; a test holds this page against it. ` + "`csi-sidecars help`" + ` prints the same.
What the prefixes mean is in [csi-sidecars](sidecars.md#flags). ` + "`csi-sidecars-node`" + ` has the parts for the whole process (without the
API server and with fewer log formats), livenessprobe and node-driver-registrar.

`

// TestTheFlagsPageIsTrue compares docs/sidecar-flags.md with the flags, or writes it.
func TestTheFlagsPageIsTrue(t *testing.T) {
	const path = "../../docs/sidecar-flags.md"
	page := bytes.NewBufferString(intro)
	command().Markdown(page)
	if os.Getenv("CAUSEWAY_GENERATE") != "" {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, page.Bytes()) {
		t.Errorf("%s isn't what the command says: run make generate-flags", path)
	}
}
