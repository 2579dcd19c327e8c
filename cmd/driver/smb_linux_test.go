package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/causeway-csi/causeway/internal/smbtest"
)

// TestSharesPassSanity runs csi-sanity against a driver process with the backend smb. It needs a
// kernel with cifs, and an SMB server outside.
func TestSharesPassSanity(t *testing.T) {
	server := smbtest.FromEnvironment()
	if server == nil {
		t.Skip("needs an SMB server and a kernel that mounts its shares: make test-vm")
	}
	if err := server.Do("mkdir/"+smbtest.Share+"/process", ""); err != nil {
		t.Fatal(err)
	}
	source := "//" + server.Address + "/" + smbtest.Share + "/process"
	dir := newDir(t)
	files := map[string]string{"username": server.User, "password": server.Password}
	list, err := json.Marshal(map[string]any{"shares": []map[string]string{{"source": source, "credentials": dir}}})
	if err != nil {
		t.Fatal(err)
	}
	files["shares.yaml"] = string(list)
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sane(t, dir, trial{
		Parameters: map[string]string{"source": source}, Mutable: map[string]string{"onDelete": "delete"}, Source: source,
	}, "--backend=smb", "--smb-shares="+filepath.Join(dir, "shares.yaml"))
}
