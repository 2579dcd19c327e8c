package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxSocketPath is the longest path of a Unix socket on the systems we run on, in bytes.
const maxSocketPath = 107

// CheckEndpoint returns an error for what Listen would never open.
func CheckEndpoint(endpoint string, allowTCP bool) error {
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		if !allowTCP {
			return fmt.Errorf("endpoint %s: anyone who can reach a TCP port could mount and delete volumes: say --allow-tcp if that is what you want", endpoint)
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("endpoint %s: %w", endpoint, err)
		}
		return nil
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return fmt.Errorf("endpoint %q is neither unix:///absolute/path.sock nor tcp://host:port", endpoint)
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("endpoint %s: the path has %d bytes, a socket's has at most %d", endpoint, len(path), maxSocketPath)
	}
	return nil
}

// Listen opens an endpoint: unix:///absolute/path.sock, or tcp://host:port where allowTCP is set. A Unix socket is for
// its owner alone (0600). One that a dead driver left is replaced; one that somebody serves is an error.
func Listen(endpoint string, allowTCP bool) (net.Listener, error) {
	if err := CheckEndpoint(endpoint, allowTCP); err != nil {
		return nil, err
	}
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		return net.Listen("tcp", address)
	}
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := checkStale(path); err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	return bindSocket(path)
}

// checkStale returns an error unless there is nothing at path, or a socket that nobody serves.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is something that is no socket: %v", info.Mode())
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return errors.New("another process serves it")
	}
	if !isRefused(err) {
		return fmt.Errorf("can't tell whether another process serves it: %w", err)
	}
	return nil
}
