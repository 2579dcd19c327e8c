package debian

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// Mirror and Archive are where packages are. A mirror has the newest of a release alone; the
// archive has all.
const (
	Mirror  = "https://deb.debian.org"
	Archive = "https://snapshot.debian.org/archive"
)

// Store fetches packages, and keeps them in a directory by their sums.
type Store struct {
	Dir             string // made if it is missing
	Mirror, Archive string
	Snapshot        string // of the lock
}

// client has a limit for a server that is silent; how long a package takes is the context's to
// limit.
var client = &http.Client{Transport: &http.Transport{
	Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 20 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
}}

// URL returns the address of a package, unless the mirror has dropped the package.
func (p Package) URL() string { return Mirror + "/" + p.Archive + "/" + p.Path }

// Get returns a package's content, which has the sum that the lock says.
func (s Store) Get(ctx context.Context, p Package) ([]byte, error) {
	kept := filepath.Join(s.Dir, p.SHA256+".deb")
	if content, err := os.ReadFile(kept); err == nil && sum(content) == p.SHA256 {
		return content, nil
	}
	var failed []error
	for _, url := range []string{
		s.Mirror + "/" + p.Archive + "/" + p.Path,
		s.Archive + "/" + p.Archive + "/" + s.Snapshot + "/" + p.Path,
	} {
		content, err := get(ctx, url, p.Size)
		if err == nil && sum(content) != p.SHA256 {
			err = fmt.Errorf("%s has the sum %s, not %s", url, sum(content), p.SHA256)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		return content, s.keep(kept, content)
	}
	return nil, fmt.Errorf("fetch %s %s for %s: %w\nIf Debian has dropped it, make images-lock takes the newest one",
		p.Name, p.Version, p.Arch, errors.Join(failed...))
}

// keep writes a file under another name until it is whole.
func (s Store) keep(path string, content []byte) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	part, err := os.CreateTemp(s.Dir, ".part")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) // there only after a failure
	_, err = part.Write(content)
	if err := errors.Join(err, part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), path)
}

// get fetches a file of at most limit bytes.
func get(ctx context.Context, url string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", url, limit)
	}
	return content, nil
}

func sum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
