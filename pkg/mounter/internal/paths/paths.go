// Package paths has the rules for paths below the kubelet directory.
package paths

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Err is the error of a path that breaks a rule: outside of its directory, relative, unclean, or
// through a link.
var Err = errors.New("invalid path")

// Limits of Linux.
const (
	MaxPath = 4095 // PATH_MAX of Linux, less the terminating NUL
	MaxName = 255  // NAME_MAX: bytes of an element of a path
)

// Below returns path relative to dir. Both must be absolute and clean, and path strictly below dir.
func Below(dir, path string) (string, error) {
	if len(path) > MaxPath || strings.IndexByte(path, 0) >= 0 {
		return "", fmt.Errorf("%w: a path has at most %d bytes, none of them NUL", Err, MaxPath)
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("%w: %.128q is not absolute and clean", Err, path)
	}
	rel, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
	if !ok || rel == "" {
		return "", fmt.Errorf("%w: %.128q is not below %q", Err, path, dir)
	}
	for name := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if len(name) > MaxName {
			return "", fmt.Errorf("%w: %.64q… has %d bytes, over %d", Err, name, len(name), MaxName)
		}
	}
	return rel, nil
}

// CheckDir returns an error for a directory that no Mounter can work below.
func CheckDir(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fmt.Errorf("%w: the kubelet directory %q is not absolute and clean", Err, dir)
	}
	return nil
}
