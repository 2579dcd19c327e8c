package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/causeway-csi/causeway/internal/smbtest"
)

// host is the address of this machine in the guest.
const host = "10.0.2.2"

// serveSMB starts an SMB server and its control for the guest, and returns a function that ends
// both.
func (m *machine) serveSMB(ctx context.Context) (stop func(), err error) {
	dir := filepath.Join(m.dir, "smb")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	server, err := smbtest.Start(dir)
	if err != nil {
		return nil, fmt.Errorf("start an SMB server: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	control := &http.Server{Handler: server.Handler()}
	go control.Serve(l)
	m.smb = fmt.Sprintf("%s:%d http://%s:%d", host, server.Port, host, l.Addr().(*net.TCPAddr).Port)
	return func() {
		control.Close()
		if err := server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "vm: end the SMB server:", err)
		}
	}, nil
}
