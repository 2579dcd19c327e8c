package linuxtest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// UseTool replaces a program with a shell script.
func UseTool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	syscall.ForkLock.RLock() // a program cannot run while a new process has its file open to write
	err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
